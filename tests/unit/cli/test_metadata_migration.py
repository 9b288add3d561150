"""What `anabranch admin metadata-migration` shows of a status."""

from __future__ import annotations

from typing import Any

from anabranch.cli.admin.metadata_migration import _line, _shown
from anabranch.metadata.migration.record import Counts, MigrationRecord, Phase, SubPhase


def status(phase: Phase, step: SubPhase | None, counts: Counts | None = None, **more: Any) -> dict[str, Any]:
    record = MigrationRecord(
        phase, "etcd://new:2379/a", "sqlite:////old", coordinator="b2", sub_phase=step, counts=counts or Counts()
    )
    calm = {"blockedSeconds": 0.0, "isBlocked": False, "blockedSinceMs": None, "participants": {"b1": "JOINED"}}
    return {**record.to_fields(), **calm, **more}


def test_copy_shows_records_bytes_rate_and_the_rest() -> None:
    copied = Counts(records=250_000, value_bytes=125_000_000, expected=1_000_000)
    found = status(Phase.NOT_STARTED, SubPhase.PRE_COPY, copied, recordsPerSecond=40_000.0, restSeconds=18.75)
    assert _line(found) == (
        "NOT_STARTED: copying while writes go on; 250,000 of about 1,000,000 records, 125.0 MB, 40,000/s, "
        "about 19 s left of this step"
    )
    shown = _shown(found)
    for part in ("250,000 of about 1,000,000", "125,000,000", "40,000", "about 19 s", "broker b1", "sqlite:////old"):
        assert part in shown


def test_comparison_shows_how_far_it_is() -> None:
    counts = Counts(records=1_000, value_bytes=500_000, expected=1_007, verified=400)
    found = status(Phase.NOT_STARTED, SubPhase.VERIFY_TREE, counts, recordsPerSecond=100.0, restSeconds=6.0)
    assert "1,000 records, 0.5 MB, 400 compared, 100/s, about 6 s left of this step" in _line(found)


def test_blocked_writes_are_shown_with_what_and_since_when() -> None:
    blocked = {"isBlocked": True, "blockedSeconds": 0.25, "blockedSinceMs": 1_700_000_000_000}
    found = status(Phase.PREPARATION, SubPhase.CLOSE_GATES, Counts(records=10, changed=3), **blocked)
    assert _line(found).endswith("writes wait for 0.2 s, 3 changed meanwhile")
    shown = _shown(found)
    assert "0.250 s, waiting now, since 22:13:20 UTC: topics, policies, splits and other metadata" in shown


def test_brokers_that_have_not_switched_are_named_and_the_setting_comes_last() -> None:
    waiting = status(Phase.COMPLETED, SubPhase.SWITCH, pending=["b3"], allSwitched=False)
    assert "Not switched yet: b3" in _shown(waiting)
    assert "metadata" not in _shown(waiting)
    url = 'sqlite:///C:\\odd "name"'
    done = status(Phase.COMPLETED, SubPhase.DONE, pending=[], allSwitched=True, settings={"metadata.url": url})
    assert _shown(done).endswith('\n  [metadata]\n  url = "sqlite:///C:\\\\odd \\"name\\""')


def test_a_failure_shows_its_error() -> None:
    assert "b3: no answer" in _shown({**status(Phase.FAILED, SubPhase.CLOSE_GATES), "error": "b3: no answer"})


def test_nothing_has_run() -> None:
    assert _shown(status(Phase.NOT_STARTED, None)) == "no migration of the metadata has run"
