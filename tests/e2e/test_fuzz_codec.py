"""The fuzz of the native codec runs, tiny; `make soak` runs it long."""

from __future__ import annotations

import pytest

from tests.soak.fuzz_codec import UNAVAILABLE, main


@pytest.mark.slow
def test_the_native_codec_under_sanitizers(capfd: pytest.CaptureFixture[str]) -> None:
    code = main(["--cases", "150", "--seed", "7"])
    shown = capfd.readouterr().out
    if code == UNAVAILABLE:
        pytest.skip("no C compiler with AddressSanitizer")
    assert code == 0, shown
    assert "150 cases, 0 differ" in shown
