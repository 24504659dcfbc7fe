"""Objectives and scores within one percent of scikit-learn's, on digits and on the files of HIGGS and
MovieLens where they are found."""

import pytest

pytest.importorskip("sklearn", minversion="1.6")
pytest.importorskip("pyarrow")

from benchmarks.estimators.quality import ALLOWED, compare


@pytest.mark.slow
def test_objectives_and_scores_are_within_one_percent() -> None:
    found = list(compare(fits=2))
    assert len(found) >= 5
    assert not [f"{each.name}: {each.worse:+.2%}" for each in found if each.worse > ALLOWED]
