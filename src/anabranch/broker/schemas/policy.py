"""The schema policies of a namespace, under Pulsar's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anabranch.broker.catalog.policies import SCHEMA_STRATEGY, SCHEMA_VALIDATION
from anabranch.broker.schemas.settings import SchemaSettings
from anabranch.model.errors import BadRequest
from anabranch.model.schema import AUTO_UPDATE_STRATEGIES, Strategy

STRATEGY, VALIDATION = SCHEMA_STRATEGY, SCHEMA_VALIDATION
AUTO_UPDATE_STRATEGY = "schema_auto_update_compatibility_strategy"
AUTO_UPDATE = "is_allow_auto_update_schema"


@dataclass(frozen=True, slots=True)
class SchemaPolicy:
    """The policies in force; `strategy` is never UNDEFINED."""

    strategy: Strategy
    auto_update: bool
    validation_enforced: bool

    @classmethod
    def of(cls, policies: Mapping[str, Any], settings: SchemaSettings) -> SchemaPolicy:
        strategy = Strategy(with_strategy(policies).get(STRATEGY) or Strategy.UNDEFINED)
        if strategy is Strategy.UNDEFINED:
            strategy = settings.strategy
        return cls(
            strategy,
            bool(policies.get(AUTO_UPDATE, settings.auto_update)),
            bool(policies.get(VALIDATION, False)) or settings.validation_enforced,
        )


def with_strategy(policies: Mapping[str, Any]) -> dict[str, Any]:
    """The record with the strategy by its newer name, if it is set by its older one only."""
    older = AUTO_UPDATE_STRATEGIES.get(policies.get(AUTO_UPDATE_STRATEGY) or "")
    if older is None or policies.get(STRATEGY) not in (None, Strategy.UNDEFINED):
        return dict(policies)
    return {**policies, STRATEGY: older.value}


def check_policy(name: str, value: Any) -> None:
    """Raises BadRequest for an invalid value. None removes the policy."""
    match name:
        case _ if value is None:
            return
        case "schema_compatibility_strategy":
            _one_of(value, list(Strategy))
        case "schema_auto_update_compatibility_strategy":
            _one_of(value, list(AUTO_UPDATE_STRATEGIES))
        case _:
            if not isinstance(value, bool):
                raise BadRequest("the body must be true or false")


def _one_of(value: Any, words: list[str]) -> None:
    if value not in words:
        raise BadRequest(f"the strategy is one of {', '.join(words)}, not {value!r}")
