"""Objectives and scores within one percent of scikit-learn's, on digits and on the files of HIGGS and
MovieLens. Other tests make the comparison on digits, so this test is skipped if the files are not
found."""

from pathlib import Path

import pytest

pytest.importorskip("sklearn", minversion="1.6")
pytest.importorskip("pyarrow")

from benchmarks.estimators.quality import ALLOWED, compare, file_of


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_objectives_and_scores_are_within_one_percent(real_data: Path) -> None:
    if file_of("higgs") is None or file_of("movielens-latest-small") is None:
        pytest.skip(f"HIGGS or MovieLens is not in {real_data}")
    found = list(compare())
    assert len(found) == 11
    assert not [f"{each.name}: {each.worse:+.2%}" for each in found if each.worse > ALLOWED]
