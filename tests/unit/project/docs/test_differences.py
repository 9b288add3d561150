"""The table of the five proposals in docs/reference/differences-from-pulsar.md, checked against the code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.controller.records import keys
from anabranch.metadata.migration.record import ROOT as MIGRATION_ROOT
from anabranch.model.errors import Error
from anabranch.model.metadata_keys import scalable_topic_key, segment_load_key
from anabranch.model.names import TopicName
from anabranch.node.settings.node import NodeSettings
from anabranch.rest.errors import status_of
from anabranch.runtime.settings import shown
from anabranch.storage.settings import StorageSettings
from tests.compatibility.public_surface import import_everything

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs/reference/differences-from-pulsar.md").read_text()
SURFACE = ROOT / "tests/compatibility/surface"
TOPIC = TopicName.parse("topic://T/N/NAME")
SETTINGS = shown(NodeSettings(storage=StorageSettings(dir=Path("x"))))


def section(title: str) -> list[list[str]]:
    """Cells of the rows of the table under a heading of the five proposals."""
    part = PAGE.partition("## The five proposals")[2].partition(f"### {title}\n")[2].partition("\n##")[0]
    rows = [line.strip("|").split(" | ") for line in part.splitlines() if line.startswith("| ")]
    return [[cell.strip(" |") for cell in row] for row in rows[1:]]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_proposal_is_there() -> None:
    rows = [row for title in ("Metadata paths", "Metrics", "Errors") for row in section(title)]
    assert {number for row in rows for number in row[0].split(", ")} == {"454", "460", "468", "475", "483"}


def test_metadata_paths_are_those_of_the_code() -> None:
    ours = {path for row in section("Metadata paths") for path in quoted(row[2])}
    migration = {path for path in ours if path.startswith(MIGRATION_ROOT)}
    written = {
        scalable_topic_key(TOPIC),
        segment_load_key(TOPIC, 0).replace("/0/", "/ID/"),
        keys.registry_key(TOPIC),
        keys.group_key(TOPIC, 0, "SUB").replace("/0/", "/INCARNATION/"),
        keys.term_key(TOPIC),
        keys.pending_key(TOPIC),
        keys.TERM_FLOOR,
    }
    stored = (ROOT / "docs/internals/stored-formats.md").read_text()
    documented = set(re.findall(r"^\| `(/(?:topics|controllers)/[^`]+)`", stored, re.MULTILINE))
    assert written <= documented, "stored-formats.md lists all keys"
    assert ours - migration == documented
    text = (ROOT / "src/anabranch/metadata/migration/record.py").read_text()
    assert migration == set(re.findall(rf"^    ({MIGRATION_ROOT}/\S+)", text, re.MULTILINE))


def test_settings_and_their_defaults_are_those_of_the_code() -> None:
    rows = section("Settings")
    for _, _, ours, default in rows:
        for name in quoted(ours):
            assert SETTINGS[name] == default, name
    help_of = json.loads((SURFACE / "settings.json").read_text())
    assert set(help_of) == set(SETTINGS)
    named = {(pulsar, name) for pulsar, _, ours, _ in rows for pulsar in quoted(pulsar) for name in quoted(ours)}
    page = (ROOT / "docs/reference/settings.md").read_text()
    told = re.findall(r"^\| `(scalable_topics\.\w+)` \|.*\(Pulsar: (\w+)\) \|$", page, re.M)
    assert len(told) >= 13
    assert {(pulsar, name) for name, pulsar in told} <= named, "every setting that has Pulsar's name is in the table"


def test_metrics_exist() -> None:
    known = json.loads((SURFACE / "metrics.json").read_text())
    rows = section("Metrics")
    assert [name for row in rows for name in quoted(row[2]) if name not in known] == []
    of_pulsar = {name for row in rows for name in quoted(row[1])}
    help_of = (ROOT / "docs/reference/metrics.md").read_text()
    told = set(re.findall(r"`(pulsar_scalable_topic_\w+)`[^\n]*\(PIP-483\)", help_of))
    assert told <= of_pulsar and len(of_pulsar) == 5


def error_kinds(kind: type[Error]) -> Iterator[type[Error]]:
    for one in kind.__subclasses__():
        yield one
        yield from error_kinds(one)


def answers() -> Iterator[tuple[int, str]]:
    for row in section("Errors"):
        for status, codes in re.findall(r"(\d{3}) ((?:`[\w-]+`(?:, )?)+)", row[3]):
            for code in quoted(codes):
                yield int(status), code


@pytest.mark.parametrize(("status", "code"), sorted(set(answers())))
def test_error_has_that_status(status: int, code: str) -> None:
    import_everything()
    clients = ("anabranch.client.", "anabranch.admin.")  # theirs are answers of a broker
    known = (one for one in error_kinds(Error) if not one.__module__.startswith(clients))
    kinds = [one for one in known if vars(one).get("code") == code]
    assert kinds, f"no error has the code {code}"
    for kind in kinds:
        assert status_of(kind.__new__(kind)) == status
