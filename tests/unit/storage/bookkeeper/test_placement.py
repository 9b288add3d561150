"""Choice of bookies: quarantine, racks, too few."""

from __future__ import annotations

import pytest

from anabranch.storage.bookkeeper.errors import NotEnoughBookies
from anabranch.storage.bookkeeper.placement import choose_ensemble, rank_spares

ONE_RACK = {"a": "r1", "b": "r1", "c": "r1"}


def test_the_first_of_the_random_order_are_chosen() -> None:
    assert choose_ensemble(["c", "a", "d", "b"], 3, quarantined=(), racks={}) == ("c", "a", "d")


def test_bookies_in_quarantine_are_taken_only_when_they_are_needed() -> None:
    assert choose_ensemble(["a", "b", "c", "d"], 3, quarantined={"a"}, racks={}) == ("b", "c", "d")
    assert choose_ensemble(["a", "b", "c"], 3, quarantined={"a"}, racks={}) == ("b", "c", "a")


def test_too_few_bookies_are_an_error_that_counts_them() -> None:
    with pytest.raises(NotEnoughBookies, match="needs 3 writable bookies, 2 are there: a, b"):
        choose_ensemble(["b", "a"], 3, quarantined=(), racks={})


def test_two_racks_are_preferred_and_not_demanded() -> None:
    racks = {**ONE_RACK, "d": "r2"}
    assert choose_ensemble(["a", "b", "c", "d"], 3, quarantined=(), racks=racks) == ("a", "b", "d")
    assert choose_ensemble(["a", "b", "c"], 3, quarantined=(), racks=ONE_RACK) == ("a", "b", "c")
    assert choose_ensemble(["a", "d"], 1, quarantined=(), racks=racks) == ("a",)


def test_spare_of_another_rack_comes_first_if_one_rack_is_left() -> None:
    racks = {**ONE_RACK, "d": "r2", "e": "r2"}
    assert rank_spares(["c", "d"], quarantined=(), racks=racks, kept=["a", "b"]) == ["d", "c"]
    assert rank_spares(["c", "d"], quarantined=(), racks=racks, kept=["a", "e"]) == ["c", "d"]
    assert rank_spares(["c", "d"], quarantined={"d"}, racks=racks, kept=["a", "b"]) == ["c", "d"]
