"""Settings of scalable topics: the broker's level of the auto-scale policy."""

from __future__ import annotations

import pytest

from anabranch.controller.settings import ScalableTopicsSettings
from anabranch.model.autoscale.policy import AutoScalePolicy, SplitPoint
from anabranch.runtime.settings import SettingsError


def test_default_settings_are_the_default_policy() -> None:
    assert ScalableTopicsSettings().auto_scale_policy == AutoScalePolicy()


def test_every_field_of_the_policy_has_a_setting() -> None:
    settings = ScalableTopicsSettings(
        auto_scale_enabled=False, max_segments=8, split_point="load", merge_msg_rate_in_threshold=0.0
    )
    assert settings.auto_scale_policy == AutoScalePolicy(
        enabled=False, max_segments=8, split_point=SplitPoint.LOAD, merge_msg_rate_in_threshold=0.0
    )


def test_settings_that_contradict_each_other_are_refused_at_start() -> None:
    with pytest.raises(SettingsError, match=r"maxSegments \(4\) is below minSegments \(8\)"):
        ScalableTopicsSettings(max_segments=4, min_segments=8)
    with pytest.raises(SettingsError, match="splitPoint is midpoint or load"):
        ScalableTopicsSettings(split_point="median")
