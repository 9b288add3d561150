"""Who is connected, and what may they do: authentication, authorization, permissions, tokens."""
