"""The folder of a run that continues another one."""

from pathlib import Path

import pytest

from polyrhythm.api.folders import next_run_dir


@pytest.mark.parametrize(
    ("there", "continued", "name"),
    [
        (["mine"], "mine", "mine-2"),
        (["mine", "mine-2"], "mine-2", "mine-3"),
        (["mine", "mine-2"], "mine", "mine-3"),
        (["digits-1"], "digits-1", "digits-1-2"),
        ([], "bucket", "bucket-2"),
    ],
)
def test_a_run_is_named_after_the_one_that_it_continues(
    tmp_path: Path, there: list[str], continued: str, name: str
) -> None:
    for each in there:
        (tmp_path / each).mkdir()
    assert next_run_dir(tmp_path / continued) == tmp_path / name
    assert (tmp_path / name).is_dir()
