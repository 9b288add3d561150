"""Choice of bookies for a new ledger or as replacements. Pure functions; the caller brings the bookies in random order.

Preferred are bookies without recent failures, and ensembles that span at least two racks. Both are preferences only: a
ledger on doubtful bookies, or in one rack, is better than none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from anabranch.storage.bookkeeper.errors import NotEnoughBookies

RACKS_MIN = 2


def choose_ensemble(
    writable: Sequence[str], size: int, *, quarantined: Collection[str], racks: Mapping[str, str]
) -> tuple[str, ...]:
    """`writable` in random order. Raises NotEnoughBookies."""
    ordered = rank_spares(writable, quarantined=quarantined)
    if len(ordered) < size:
        raise NotEnoughBookies(
            f"a new ledger needs {size} writable bookies, {len(ordered)} are there: {', '.join(sorted(ordered)) or '-'}"
        )
    chosen = ordered[:size]
    if size < RACKS_MIN or len({racks.get(one, "") for one in chosen}) >= RACKS_MIN:
        return tuple(chosen)
    rack = racks.get(chosen[0], "")
    other = next((one for one in ordered[size:] if racks.get(one, "") != rack), None)
    return tuple(chosen) if other is None else (*chosen[:-1], other)


def rank_spares(
    writable: Sequence[str],
    *,
    quarantined: Collection[str],
    racks: Mapping[str, str] | None = None,
    kept: Collection[str] = (),
) -> list[str]:
    """Best first. `kept`: the members that stay in the ensemble; a spare in a rack of its own comes first."""
    labels = racks or {}
    used = {labels.get(one, "") for one in kept}
    is_narrow = len(used) < RACKS_MIN
    return sorted(writable, key=lambda one: (one in quarantined, is_narrow and labels.get(one, "") in used))
