"""What a copy counts, and where it refuses to write; what a picture can be."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.spark.client.access import BadSparkOption
from anabranch.spark.jobs.copy import CopyProgress, Tally, check_folder, progress_of
from anabranch.spark.jobs.plots import NoPicture, check_picture


def reports(*batches: tuple[int, int]) -> list[dict[str, int]]:
    return [{"batchId": batch, "numInputRows": rows} for batch, rows in batches]


def test_batches_are_counted_once_and_those_forgotten_since_too() -> None:
    tally = Tally()
    tally.note(reports((0, 10), (1, 10)))
    tally.note(reports((1, 10), (2, 5), (3, 0)))
    assert (tally.rows, tally.batches) == (25, 3)


def test_progress_has_rate_and_lag() -> None:
    assert progress_of(0, []) == CopyProgress(0, 0.0, None)
    ahead = {"processedRowsPerSecond": 12.5, "sources": [{"latestOffset": '{"v": 1, "backlogRows": 40}'}]}
    assert progress_of(60, [ahead]) == CopyProgress(60, 12.5, 40)
    files = {"processedRowsPerSecond": 3.0, "sources": [{"latestOffset": '{"logOffset": 0}'}]}
    assert progress_of(7, [ahead, files]) == CopyProgress(7, 3.0, None)


def test_a_folder_is_written_by_one_checkpoint(tmp_path: Path) -> None:
    folder, checkpoint = tmp_path / "rows", tmp_path / "checkpoint"
    check_folder(str(folder), str(checkpoint))
    folder.mkdir()
    check_folder(str(folder), str(checkpoint))
    (folder / "part-0.parquet").touch()
    with pytest.raises(BadSparkOption, match=r"rows is not empty, and .*checkpoint is not the checkpoint of"):
        check_folder(str(folder), str(checkpoint))
    (checkpoint / "offsets").mkdir(parents=True)
    check_folder(str(folder), str(checkpoint))
    check_folder("s3://bucket/rows", "s3://bucket/checkpoint")
    (tmp_path / "file").touch()
    with pytest.raises(BadSparkOption, match="file is no folder"):
        check_folder(str(tmp_path / "file"), str(tmp_path / "new"))


def test_a_picture_is_looked_at_before_the_work(tmp_path: Path) -> None:
    check_picture(tmp_path / "one.PNG")
    check_picture(tmp_path / "one.svg")
    with pytest.raises(NoPicture, match=r"one\.txt: a picture is a \.png or \.svg file"):
        check_picture(tmp_path / "one.txt")
    with pytest.raises(NoPicture, match=r"there is no folder .*nowhere"):
        check_picture(tmp_path / "nowhere" / "one.png")
