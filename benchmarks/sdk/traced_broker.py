"""`anabranch` with time marks at the steps of a split in the broker. At exit the marks are written to a file.

`python -m benchmarks.sdk.traced_broker standalone …` with the path in ANABRANCH_MARKS.
Used by `benchmarks.sdk.split_trace`.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
from pathlib import Path

from anabranch.broker.segment import owned_segment
from anabranch.broker.segment_host import local_segments as segment_owner
from anabranch.broker.topic import topic
from anabranch.broker.wire import consumer_commands
from anabranch.broker.wire import scalable_topic_commands as scalable_commands
from anabranch.broker.wire.producer_commands import ProducerCommands
from anabranch.cli.main import main
from anabranch.controller import layout_watches as watches
from anabranch.controller import record_store as records
from anabranch.controller.group import group_coordinator as members
from anabranch.controller.topic import topic_controller as leader
from anabranch.metadata.sqlite.writer import Writer
from anabranch.node.node import Node
from anabranch.storage.log.commit_log import CommitLog
from benchmarks.support.time_marks import Marks

MARKS = "ANABRANCH_MARKS"
TIMED = (
    (CommitLog, "commit", "log"),
    (Writer, "_commit", "metadata"),
    (Writer, "_checkpoint", "checkpoint of metadata"),
)


def install(marks: Marks) -> None:
    marks.watch(leader.TopicController, "ask", lambda _, call: f"broker: {type(call).__name__}", end=False)
    marks.watch(leader.TopicController, "_save", lambda self, effect: f"broker: save {self._word(effect.record)}")
    marks.watch(leader.TopicController, "_asked", lambda _, request: f"broker: {type(request).__name__}")
    marks.watch(
        leader.TopicController, "_tell", lambda _, record: f"broker: tell {'plan' if record.operation else 'layout'}"
    )
    marks.watch(leader.TopicController, "_reply", "broker: reply")
    marks.watch(records.RecordStore, "save_group", "broker: save group")
    marks.watch(members.GroupCoordinator, "on_segment_event", "broker: leader receives drain event")
    marks.watch(members.GroupCoordinator, "_send_assignment", "broker: push assignment")
    marks.watch(watches.LayoutWatches, "_notify", "broker: watchers notified")
    marks.watch(segment_owner.LocalSegments, "_find", "broker: owner finds")
    marks.watch(owned_segment.OwnedSegment, "add_cursors", "broker: cursors")
    marks.watch(owned_segment.OwnedSegment, "_tell", "broker: drain is written")
    marks.watch(owned_segment.OwnedSegment, "_notify_sealed", "broker: producer notified of seal")
    marks.watch(scalable_commands.LayoutSession, "layout_changed", "broker: layout pushed")
    marks.watch(ProducerCommands, "_open", "broker: PRODUCER")
    marks.watch(topic.Topic, "subscribe", "broker: subscribe")
    marks.watch(consumer_commands.ConsumerCommands, "_flow", "broker: FLOW")


def install_machine(marks: Marks) -> None:
    """Marks for stalls that affect the whole process: garbage collector, threads, event loop, disk."""
    marks.watch_collector("broker")
    marks.watch_threads("broker", 0.004)
    enter = Node.__aenter__

    async def entered(self: Node) -> Node:
        task = asyncio.get_running_loop().create_task(marks.watch_loop("broker", 0.004))
        marks.keep(task)
        return await enter(self)

    Node.__aenter__ = entered  # type: ignore[assignment,method-assign]  # patched in this process only
    for owner, name, what in TIMED:
        marks.time(owner, name, f"broker: {what} took", longer_than_s=0.004)


if __name__ == "__main__":
    marks = Marks()
    install(marks)
    install_machine(marks)
    atexit.register(lambda: marks.save(Path(os.environ[MARKS])))
    sys.exit(main())
