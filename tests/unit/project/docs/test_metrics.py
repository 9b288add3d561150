"""The reference of metrics and the dashboard say what the broker and the SDK really write."""

from __future__ import annotations

import json
import re
from pathlib import Path

from anabranch.broker.stats.metrics import FAMILIES
from anabranch.client.metrics.prometheus_text import CONNECTIONS, CONSUMER, PRODUCER
from scripts.metrics_reference import PARTS, page

DOCS = Path(__file__).parents[4] / "docs"


def test_the_reference_is_in_step() -> None:
    text = (DOCS / "reference" / "metrics.md").read_text()
    assert text == page(), "make it again: python -m scripts.metrics_reference > docs/reference/metrics.md"


def test_the_reference_names_every_family() -> None:
    families = {family for _, _, families in PARTS for family in families}
    assert families == {*FAMILIES, CONNECTIONS, *PRODUCER, *CONSUMER}


def test_the_dashboard_asks_only_for_what_there_is() -> None:
    board = json.loads((DOCS / "operations" / "grafana-dashboard.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    asked = {name for text in expressions for name in re.findall(r"\b(?:pulsar|anabranch)_\w+", text)}
    assert len(asked) > 15
    assert asked <= {family.name for family in FAMILIES}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
