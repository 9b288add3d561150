"""JSON schemas of the migration of a regular topic: what a check and a status answer."""

from __future__ import annotations

from typing import Any

TEXT = {"type": "string"}
TEXT_OR_NULL = {"type": ["string", "null"]}
NUMBER = {"type": "integer"}
WORDS = {"type": "object", "additionalProperties": TEXT}

QUERY: dict[str, Any] = {
    "check": {"type": "boolean"},
    "force": {"type": "boolean"},
    "subscriptionType": {"type": "array", "items": TEXT},  # SUBSCRIPTION:stream or SUBSCRIPTION:queue
}

_CLIENT = {
    "type": "object",
    "required": ["address", "name", "role", "subscription", "version"],
    "properties": {
        "role": {"type": "string", "enum": ["producer", "consumer"]},
        "name": TEXT,
        "address": TEXT,
        "version": TEXT,
        "subscription": TEXT_OR_NULL,
    },
}
_BLOCKER = {"type": "object", "required": ["kind", "reason"], "properties": {"kind": TEXT, "reason": TEXT}}

CHECK: dict[str, Any] = {
    "type": "object",
    "required": [
        "blockers",
        "clients",
        "partitions",
        "possible",
        "scalableTopic",
        "segments",
        "subscriptions",
        "topic",
    ],
    "properties": {
        "topic": TEXT,
        "scalableTopic": TEXT,
        "partitions": NUMBER,
        "segments": NUMBER,
        "subscriptions": {
            "type": "object",
            "additionalProperties": {"type": "string", "enum": ["STREAM", "QUEUE"]},
        },
        "properties": WORDS,
        "partitionHash": {
            "type": "object",
            "properties": {
                "hash": TEXT_OR_NULL,
                "source": TEXT,
                "verdict": TEXT,
                "keys": NUMBER,
                "matches": {"type": "object", "additionalProperties": NUMBER},
            },
        },
        "clients": {"type": "array", "items": _CLIENT},
        "blockers": {"type": "array", "items": _BLOCKER},
        "possible": {"type": "boolean"},
    },
}
"""With `check=true`; otherwise the answer is empty."""

STATUS: dict[str, Any] = {
    "type": "object",
    "required": ["phase", "topic"],
    "properties": {
        "topic": TEXT,
        "phase": {"type": "string", "enum": ["NONE", "CREATE", "SEAL", "UNDO", "DONE"]},
        "migratedFrom": {
            "type": "object",
            "required": ["atMs", "partitions", "topic"],
            "properties": {"topic": TEXT, "partitions": NUMBER, "atMs": NUMBER},
        },
        "operation": TEXT,
        "startedAtMs": NUMBER,
        "finishedAtMs": NUMBER,
        "reason": TEXT,
        "progress": {
            "type": "object",
            "required": ["done", "step", "total"],
            "properties": {
                "step": {"type": "string", "enum": ["ADOPT", "REGISTER", "CREATE", "SEAL", "COMMIT", "UNDO"]},
                "done": NUMBER,
                "total": NUMBER,
            },
        },
    },
}
