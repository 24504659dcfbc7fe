"""The table of the benchmark of `--async-scale`."""

from typing import Any

from benchmarks.async_scale import PLAIN_ALL, PLAIN_ONE, runs_for, table


def row(scale: str, half: float, loss: float, *, workers: int, seed: int = 1) -> dict[str, Any]:
    sync = "" if scale.startswith("plain") else "asp"
    run = {"job": "digits", "optimizer": "Adam", "workers": workers, "sync": sync, "scale": scale}
    return {
        "run": {**run, "rate": 1.0, "seed": seed},
        "machine": "a machine",
        "half_loss": half,
        "loss": loss,
        "score": 0.9,
    }


def test_the_scale_with_the_losses_nearest_to_one_process_with_all_batches_is_in_bold() -> None:
    rows = [
        row(PLAIN_ONE, 0.2, 0.1, workers=1),
        row(PLAIN_ALL, 1.0, 0.5, workers=8),
        row("members", 2.0, 0.5, workers=8),
        row("root", 1.2, 0.6, workers=8, seed=1),
        row("root", 0.8, 0.4, workers=8, seed=2),
        row("none", 0.3, 0.5, workers=8),
    ]
    assert "a machine; 2 seeds" in table(rows)
    assert table(rows).splitlines()[-1] == (
        "| Adam | digits | 8 | x1 | `asp` | 0.200, 0.100, 0.900 | 1.000, 0.500, 0.900 |"
        " 2.000, 0.500, 0.900 | **1.000, 0.500, 0.900** | 0.300, 0.500, 0.900 |"
    )


def test_a_run_that_failed_is_not_the_nearest() -> None:
    failed = row("members", 0, 0, workers=8)
    for name in ("half_loss", "loss", "score"):
        del failed[name]
    shown = table([row(PLAIN_ALL, 1.0, 0.5, workers=8), failed, row("root", 9.0, 9.0, workers=8)])
    assert "inf, inf, inf | **9.000" in shown


def test_one_process_with_the_batch_of_one_worker_is_trained_once_for_all_numbers_of_workers() -> (
    None
):
    runs = list(runs_for(["digits"], ["Adam"], [2, 4, 8], ["asp"], [1.0], 1))
    assert [run.workers for run in runs if run.scale == PLAIN_ONE] == [1]
    assert [run.workers for run in runs if run.scale == PLAIN_ALL] == [2, 4, 8]
