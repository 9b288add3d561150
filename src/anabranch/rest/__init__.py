"""The HTTP port: routes as data (`routes`), one small server (`server`), the broker face they call (`face`)."""
