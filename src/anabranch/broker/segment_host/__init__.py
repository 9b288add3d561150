"""The broker's side of the controller's port: requests for segments, routed to their owner."""
