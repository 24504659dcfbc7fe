"""Objectives and scores within one percent of scikit-learn's, on digits and on the files of HIGGS and
MovieLens. Other tests make the comparison on digits, so this test is skipped if the files are not
found."""

import pytest

pytest.importorskip("sklearn", minversion="1.6")
pytest.importorskip("pyarrow")

from benchmarks.estimators.quality import ALLOWED, compare, file_of


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_objectives_and_scores_are_within_one_percent() -> None:
    if file_of("higgs") is None or file_of("movielens-latest-small") is None:
        pytest.skip("HIGGS or MovieLens is in none of its places")
    found = list(compare())
    assert len(found) == 11
    assert not [f"{each.name}: {each.worse:+.2%}" for each in found if each.worse > ALLOWED]
