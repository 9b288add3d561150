"""Names, codes, settings, metrics, REST, commands and wire fields that users rely on are what the snapshots say."""

from __future__ import annotations

import pytest

import anabranch.testing
from tests.compatibility import public_surface, snapshot


def test_public_python_names_and_signatures_are_unchanged() -> None:
    snapshot.check("python", public_surface.python_names())


def test_error_codes_are_unchanged() -> None:
    snapshot.check("errors", public_surface.error_codes())


def test_settings_and_defaults_are_unchanged() -> None:
    snapshot.check("settings", public_surface.settings())


def test_metric_names_types_and_labels_are_unchanged() -> None:
    snapshot.check("metrics", public_surface.metrics())


def test_rest_paths_and_parameters_are_unchanged(anabranch_broker: anabranch.testing.Broker) -> None:
    snapshot.check("rest", public_surface.rest(anabranch_broker.http_url))


def test_commands_and_options_are_unchanged() -> None:
    snapshot.check("cli", public_surface.command_line())


def test_wire_commands_and_field_numbers_are_unchanged() -> None:
    snapshot.check("wire", public_surface.wire())


@pytest.mark.parametrize("name", public_surface.COLLECTORS)
def test_a_snapshot_is_sorted_with_one_entry_per_line(name: str) -> None:
    entries = snapshot.read(name)
    lines = snapshot.path_of(name).read_text().splitlines()
    assert len(lines) == len(entries) + 2
    assert list(entries) == sorted(entries)


def test_differences_name_what_was_removed_changed_and_added() -> None:
    before = {"gone": "x", "other": "x", "same": "x"}
    now = {"new": "x", "other": "y", "same": "x"}
    assert snapshot.differences(before, now) == [
        "removed: gone: x",
        "changed: other\n    before: x\n    now:    y",
        "added: new: x",
    ]
    assert snapshot.differences(before, before) == []
