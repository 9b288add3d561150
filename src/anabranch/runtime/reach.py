"""Whether a port accepts connections: one attempt, without sending anything."""

from __future__ import annotations

import asyncio


async def is_listening(host: str, port: int, seconds: float) -> bool:
    """False only if the port refuses; a slow or distant peer counts as listening."""
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return False
    except (OSError, TimeoutError):
        return True
    writer.transport.abort()
    return True
