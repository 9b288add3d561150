"""A web service with FastAPI: requests become messages, a consumer in the same process answers from what it has seen.

    pip install fastapi uvicorn
    uvicorn examples.sdk_fastapi:app        # or run this file: it starts the service, calls it, and stops

One client lives as long as the service. A request is answered when its message is stored, so nothing that was
acknowledged to the caller can be lost.
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

import anabranch

SERVICE_URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ANABRANCH_SERVICE_URL", "pulsar://localhost:6650")
TOPIC = f"persistent://public/default/web-orders-{uuid.uuid4().hex[:8]}"


class Order(BaseModel):
    customer: str
    cents: int = Field(gt=0)


class Shop:
    """What the routes need: a producer, and totals that the consumer keeps."""

    def __init__(self, producer: anabranch.Producer) -> None:
        self.producer = producer
        self.totals: dict[str, int] = defaultdict(int)

    async def follow(self, consumer: anabranch.StreamConsumer) -> None:
        async for message in consumer:
            order = message.value
            self.totals[order.customer] += order.cents
            await consumer.ack_cumulative(message)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with (
        anabranch.connect(SERVICE_URL) as client,
        client.producer(TOPIC, schema=Order) as producer,
        client.stream_consumer(TOPIC, subscription="totals", start="earliest", schema=Order) as consumer,
    ):
        app.state.shop = shop = Shop(producer)
        following = asyncio.create_task(shop.follow(consumer))
        yield
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def take(order: Order) -> dict[str, str]:
    shop: Shop = app.state.shop
    try:
        stored = await shop.producer.send(order, key=order.customer, timeout=5)
    except anabranch.Error as error:  # the caller may try again where that has a chance
        raise HTTPException(503 if error.retryable else 500, error.code) from error
    return {"id": str(stored)}


@app.get("/totals/{customer}")
async def total(customer: str) -> dict[str, int]:
    shop: Shop = app.state.shop
    return {"cents": shop.totals[customer]}


async def until(holds: Callable[[], bool]) -> None:
    """Looks fifty times a second; the caller has the deadline."""
    for _ in range(10_000):
        if holds():
            return
        await asyncio.sleep(0.02)


async def demonstrate() -> bool:
    """Starts the service on a free port and uses it as a browser would."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve())
        async with asyncio.timeout(30):
            await until(lambda: server.started)
            port = server.servers[0].sockets[0].getsockname()[1]
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as browser:
                for cents in (250, 100):
                    answer = await browser.post("/orders", json={"customer": "ann", "cents": cents})
                    print("POST /orders", answer.status_code, answer.json())
                refused = await browser.post("/orders", json={"customer": "ann", "cents": -1})
                print("POST /orders with a negative amount", refused.status_code)
                await until(lambda: app.state.shop.totals["ann"] == 350)
                print("GET /totals/ann", (await browser.get("/totals/ann")).json())
        server.should_exit = True
    return refused.status_code == 422


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(demonstrate()) else 1)
