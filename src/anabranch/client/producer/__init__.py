"""Sending. `X` is the asyncio shell, `X_state` its machine."""
