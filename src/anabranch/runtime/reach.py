"""Is anybody there? One connection attempt, nothing said. Knows sockets only."""

from __future__ import annotations

import asyncio


async def is_listening(host: str, port: int, seconds: float) -> bool:
    """False only where the port refuses: somebody slow or far away is not nobody."""
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return False
    except (OSError, TimeoutError):
        return True
    writer.transport.abort()
    return True
