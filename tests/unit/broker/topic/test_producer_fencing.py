"""Fencing epochs: the highest wins, they are saved, and the number of names is bounded."""

from __future__ import annotations

import pytest

from anabranch.broker.errors import ProducerFenced
from anabranch.broker.topic import topic_producers
from anabranch.broker.topic.topic_producers import Fences


def test_the_highest_is_right() -> None:
    made = Fences()
    assert made.raise_to("task", 2)
    assert not made.raise_to("task", 2), "the same attempt comes back: nothing to keep"
    with pytest.raises(ProducerFenced, match="a later attempt of 'task'"):
        made.raise_to("task", 1)
    assert made.raise_to("other", 1)
    assert made.raise_to("task", 3)


def test_saved_fencing_epochs_are_loaded() -> None:
    made = Fences()
    made.raise_to("task", 2)
    again = Fences(made.dump())
    with pytest.raises(ProducerFenced):
        again.raise_to("task", 1)
    assert not again.raise_to("task", 2)
    assert Fences(None).raise_to("task", 1)
    assert Fences(b"").raise_to("task", 1)


def test_the_names_unused_for_longest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_producers, "NAMES_MAX", 2)
    made = Fences()
    for name, epoch in (("a", 5), ("b", 5), ("a", 6), ("c", 5)):
        made.raise_to(name, epoch)
    assert made.raise_to("b", 1), "forgotten"
