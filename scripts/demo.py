"""`make demo`: keyed orders to a scalable topic of two brokers, while its segments are split and merged and one broker
is killed; a stream, two queue workers, a checkpoint reader and a pipeline on Spark follow. Then an audit: lost,
duplicated, reordered; and Spark's own, over the whole graph of segments.

Starts its own brokers on free loopback ports with a temporary data directory and removes both. Exit code 0 only if all
held. The parts: `demo_traffic` sends and receives, `demo_changes` splits, merges and kills, `demo_autoscale` has load
that rises and falls by itself, `demo_spark` has the pipeline (`demo_pipeline` is the program that it runs),
`demo_show` prints.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import anabranch
import anabranch.admin
from anabranch import Backoff, ConnectionPolicy
from scripts.demo_autoscale import scale_by_itself
from scripts.demo_changes import Changes
from scripts.demo_show import Show
from scripts.demo_spark import Pipeline, PipelineFailed, is_possible
from scripts.demo_spark import report as report_pipeline
from scripts.demo_traffic import Orders, Readers, report
from tests.support.processes.cluster import ClusterProcesses

TOPIC = "topic://public/default/orders"
TOTALS = "topic://public/default/totals"
RUN_S_MAX = 300.0
MIB = 1 << 20
QUICK = ConnectionPolicy(backoff=Backoff(initial=0.02, maximum=0.5))


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--messages", type=int, default=40_000)
    options.add_argument("--rate", type=int, default=2_000, help="messages a second")
    options.add_argument("--scale-seconds", type=float, default=60.0, help="how long load rises and falls by itself")
    options.add_argument("--without-spark", action="store_true", help="leave the pipeline out")
    options.add_argument("--keep", action="store_true", help="keep the data directory and the brokers' logs")
    arguments = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="anabranch-demo-"))
    show = Show()
    cluster = ClusterProcesses(folder, 2)
    try:
        with_spark = not arguments.without_spark and is_possible()
        spark = folder if with_spark else None
        return asyncio.run(demo(cluster, show, arguments.messages, arguments.rate, spark, arguments.scale_seconds))
    finally:
        cluster.close()
        if arguments.keep:
            show.say(f"kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


async def demo(
    cluster: ClusterProcesses, show: Show, messages: int, rate: int, spark: Path | None, scale_seconds: float
) -> int:
    """`spark`: where the pipeline may keep its files; None: without it."""
    show.title("Anabranch demo", "an elastic topic on two brokers: splits, merges, one kill -9, every key in order")
    began = time.monotonic()
    await asyncio.to_thread(cluster.start)
    first = next(iter(cluster.brokers.values()))
    show.row("two brokers are ready after", f"{time.monotonic() - began:.2f} s, {first.rss_bytes() / MIB:.0f} MB each")
    try:
        async with (
            asyncio.timeout(RUN_S_MAX),
            anabranch.admin.connect(first.http_url) as admin,
            anabranch.connect(cluster.service_url, connection=QUICK) as client,
        ):
            await admin.scalable_topics.create(TOPIC, segments=2)
            await admin.scalable_topics.create(TOTALS, segments=2)
            async with AsyncExitStack() as stack:
                pipeline = None
                if spark is not None:
                    show.progress("starting Spark")
                    running = Pipeline.running(cluster.service_url, TOPIC, TOTALS, spark / "spark")
                    pipeline = await stack.enter_async_context(running)
                else:
                    show.row("Spark", "left out" if is_possible() else "left out: no Java here")
                readers = await stack.enter_async_context(Readers.opened(client, TOPIC))
                changes = Changes(admin.scalable_topics, TOPIC, cluster, show)
                await changes.picture("created with two segments")
                async with client.producer(TOPIC, name="shop") as producer:
                    orders = Orders(producer, messages, rate)
                    sending = asyncio.ensure_future(orders.run())
                    await changes.run(orders)
                    await sending
                    await producer.flush(timeout=30)
                await readers.wait_all(orders, show)
                held = report(orders, readers, changes, show)
                held &= await scale_by_itself(client, admin, scale_seconds, show)
                if pipeline is not None:
                    show.progress("the pipeline reads what is left")
                    held &= report_pipeline(await pipeline.finish(), orders.confirmed, show)
                show.say(show.green("All held.") if held else show.red("NOT all held."))
                return 0 if held else 1
    except PipelineFailed as error:
        show.say(show.red(f"NOT all held: the pipeline failed: {error}"))
        return 1
    except TimeoutError:
        show.say(show.red(f"NOT all held: not done after {RUN_S_MAX:g} s."))
        return 1


if __name__ == "__main__":
    sys.exit(main())
