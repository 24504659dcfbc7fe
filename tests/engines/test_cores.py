"""Each server gets one core, and the workers share the others."""

import pytest

from polyrhythm.engines import cores


@pytest.mark.parametrize(
    ("there", "workers", "servers", "threads"),
    [
        (2, 4, 1, 1),
        (2, 1, 1, 1),
        (8, 3, 2, 2),
        (16, 4, 1, 3),
        (16, 2, 4, 6),
        (4, 1, 9, 1),
        (4, 0, 2, 2),
    ],
)
def test_each_worker_gets_its_share_of_the_cores(
    there: int, workers: int, servers: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "usable_cores", lambda: there)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    assert cores.share_of_cores(workers, servers) == threads


@pytest.mark.parametrize(
    ("variables", "threads"),
    [
        ({"OMP_NUM_THREADS": "1"}, 1),
        ({"OMP_NUM_THREADS": "2,1"}, 2),
        ({"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "2"}, 2),
        ({"OMP_NUM_THREADS": "64"}, 4),
        ({"OMP_NUM_THREADS": "0"}, 4),
        ({"OMP_NUM_THREADS": "many"}, 4),
    ],
)
def test_a_worker_has_no_more_threads_than_the_variables_allow(
    variables: dict[str, str], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "usable_cores", lambda: 16)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cores.share_of_cores(3, 2) == threads
