"""JSON schemas of what REST says of auto-scaling: policy, load reports, decisions. Words and fields are the model's."""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from typing import Any

from anabranch.model.autoscale.decision import ActionKind, Reason, Suppression
from anabranch.model.autoscale.load import HISTOGRAM_SLOTS
from anabranch.model.autoscale.policy import JSON_NAMES, METRICS, AutoScalePolicy, SplitPoint

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer"}
AMOUNT: Schema = {"type": "number"}
IDS: Schema = {"type": "array", "items": NUMBER}


def _words(of: type[Enum], *more: str) -> Schema:
    return {"type": "string", "enum": [*more, *(one.value for one in of)]}


def _object(required: dict[str, Schema], **optional: Schema) -> Schema:
    return {"type": "object", "required": sorted(required), "properties": {**required, **optional}}


_OF_TYPE: dict[str, Schema] = {
    "bool": {"type": "boolean"},
    "int": NUMBER,
    "float": AMOUNT,
    "SplitPoint": _words(SplitPoint),
}
_TYPES = {one.name: str(one.type) for one in fields(AutoScalePolicy)}
POLICY_FIELDS = {json_name: _OF_TYPE[_TYPES[name]] for json_name, name in JSON_NAMES.items()}

POLICY = _object(POLICY_FIELDS)
"""Complete: the policy in force, or of the broker."""
OVERRIDE: Schema = {"type": "object", "properties": POLICY_FIELDS}
"""What a namespace or a topic sets; other fields are stored as well."""
LEVEL: Schema = {**OVERRIDE, "type": ["object", "null"]}

_RATES = [first + "".join(word.capitalize() for word in more) for first, *more in (one.split("_") for one in METRICS)]
LOAD = _object(
    {**dict.fromkeys(_RATES, AMOUNT), "reportedAtMs": NUMBER},
    **dict.fromkeys((f"{one}5s" for one in _RATES), AMOUNT),
    belowMergeSinceMs=NUMBER,
    aboveSplitSinceMs=NUMBER,
    histogram={"type": "array", "items": AMOUNT, "maxItems": max(HISTOGRAM_SLOTS)},
    hotKey=_object({"hash": NUMBER, "share": AMOUNT, "key": TEXT}),
    reportedBy=TEXT,
)
SUPPRESSED = _object(
    {
        "kind": _words(ActionKind),
        "reason": _words(Reason),
        "suppressedBy": _words(Suppression),
        "segments": IDS,
        "segmentCount": NUMBER,
        "detail": TEXT,
    },
    untilMs=NUMBER,
)
_DECISION: dict[str, Schema] = {
    "action": _words(ActionKind, "none"),
    "reason": _words(Reason),
    "detail": TEXT,
    "suppressed": {"type": "array", "items": SUPPRESSED},
}
_ACTION: dict[str, Schema] = {"segments": IDS, "points": IDS}
NOW = _object({**_DECISION, "dueAtMs": {"type": ["integer", "null"]}}, **_ACTION)
TRIED = _object({**_DECISION, "policy": POLICY}, **_ACTION)
PAST = _object(
    {**_DECISION, "atMs": NUMBER, "epoch": NUMBER},
    **_ACTION,
    outcome={"type": "string", "enum": ["committed", "failed"]},
    error=TEXT,
)
_SUMMARY: dict[str, Schema] = {
    "policy": POLICY,
    "now": NOW,
    "lastSplitAtMs": NUMBER,
    "lastMergeAtMs": NUMBER,
    "decisions": {"type": "array", "items": PAST},
}
SUMMARY = _object(_SUMMARY)
IN_STATS: Schema = {
    "type": "object",
    "properties": {**_SUMMARY, "error": TEXT},
    "description": "`error` alone if the levels of the policy contradict each other.",
}
STATUS = _object(
    {
        **_SUMMARY,
        "activeSegments": NUMBER,
        "levels": _object({"broker": POLICY, "namespace": LEVEL, "topic": LEVEL}),
        "loads": {"type": "object", "additionalProperties": LOAD},
    }
)
METRIC = _object({"activeSegments": NUMBER, "backlog": NUMBER, "wantedConsumers": NUMBER})
