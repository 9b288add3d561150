"""The traces of a split name methods as strings; each of them must exist."""

from __future__ import annotations

from typing import Any, cast

import pytest

from anabranch.client.config import Backoff
from benchmarks.sdk import split_outliers, traced_broker
from benchmarks.support.time_marks import Marks


class NameCheck:
    """Stands in for `Marks`: records names that the owner does not have, and patches nothing."""

    def __init__(self) -> None:
        self.missing: list[str] = []

    def watch(self, owner: type, name: str, label: Any, *, end: bool = True) -> None:
        if not hasattr(owner, name):
            self.missing.append(f"{owner.__name__}.{name}")

    def watch_collector(self, process: str) -> None:
        pass


def test_traced_broker_watches_only_existing_methods() -> None:
    check = NameCheck()
    traced_broker.install(cast(Marks, check))
    assert check.missing == []
    assert [name for owner, name, _ in traced_broker.TIMED if not hasattr(owner, name)] == []


def test_split_outliers_watches_only_existing_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "delay", Backoff.delay)  # restores the method that `install` replaces
    check = NameCheck()
    split_outliers.install(cast(Marks, check))
    assert check.missing == []
