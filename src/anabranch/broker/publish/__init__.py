"""From SEND to receipt."""
