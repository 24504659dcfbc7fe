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
    assert cores.share_of_cores(workers, servers) == threads
