"""A short fuzz of the C code in every CI run; `make soak` does the long one."""

from __future__ import annotations

import pytest

from tests.soak import fuzz_codec, fuzz_loops
from tests.support.fuzz.sanitizer_builds import UNAVAILABLE


@pytest.mark.slow
def test_the_native_codec_under_sanitizers(capfd: pytest.CaptureFixture[str]) -> None:
    code = fuzz_codec.main(["--cases", "150", "--seed", "7"])
    shown = capfd.readouterr().out
    if code == UNAVAILABLE:
        pytest.skip("no C compiler with AddressSanitizer")
    assert code == 0, shown
    assert "150 cases, 0 differ" in shown


@pytest.mark.slow
def test_the_native_loops_under_sanitizers(capfd: pytest.CaptureFixture[str]) -> None:
    code = fuzz_loops.main(["--cases", "150", "--seed", "7"])
    shown = capfd.readouterr().out
    if code == UNAVAILABLE:
        pytest.skip("no C compiler with AddressSanitizer")
    assert code == 0, shown
    assert "150 cases, 0 differ" in shown
