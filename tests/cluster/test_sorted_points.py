"""k-means with real workers on sorted points: all points of some clusters may be missing from the sum.
Neither the first rounds, which contain a part of the points, nor a worker that is killed may make the
fit worse."""

from pathlib import Path

import pytest

from tests.cluster.processes import Command

JOB = Path(__file__).parent / "jobs" / "sorted_means.py"
KILLED = 3
"""The exit status of a command of which a worker was killed."""
LOWEST = 4.2
"""The points of a cluster have a variance of 1 in each of 4 features, so the best objective is about
4. If only one of the 20 centres is lost, the objective is above 5."""

FUZZY_LOWEST = 3.7
"""With whole passes, fuzzy c-means ends at 3.6. With centres that have met it ends above 5."""


def objectives(command: Command) -> tuple[float, float]:
    """The objective at the end, and the lowest one of the M-steps with all points."""
    last, lowest = (command.cwd / "worker-0.objective").read_text().split()
    return float(last), float(lowest)


@pytest.mark.timeout(120)
def test_a_killed_worker_does_not_make_the_fit_worse(tmp_path: Path) -> None:
    more = ("--kind", "statistics", "--sync", "bspb", "--workers", 4, "--epochs", 12, "--json")
    with Command(JOB, *more, "--set", "die=4.3", cwd=tmp_path) as command:
        assert command.wait() == KILLED, command.stderr()
        held, resumed = command.journal("m-steps")
        assert held["reason"] == "m-steps-held"
        assert held["fields"] == {"absent": 3000, "points": 12_000}
        assert resumed["reason"] == "m-steps-resumed"
    last, lowest = objectives(command)
    assert lowest < LOWEST and last <= 1.001 * lowest


@pytest.mark.timeout(120)
def test_the_first_rounds_do_not_make_the_fit_worse(tmp_path: Path) -> None:
    more = ("--kind", "statistics", "--sync", "fsp", "--workers", 4, "--epochs", 10, "--json")
    with Command(JOB, *more, "--interval", "20ms", "--min-step", "10ms", cwd=tmp_path) as command:
        assert command.wait() == 0, command.stderr()
    assert objectives(command)[0] < LOWEST


@pytest.mark.timeout(120)
def test_the_first_rounds_do_not_let_the_centres_of_fuzzy_c_means_meet(tmp_path: Path) -> None:
    more = ("--kind", "statistics", "--sync", "fsp", "--workers", 4, "--epochs", 10, "--json")
    more = (*more, "--interval", "20ms", "--min-step", "10ms", "--set", "fuzzy=yes")
    with Command(JOB, *more, cwd=tmp_path) as command:
        assert command.wait() == 0, command.stderr()
    assert objectives(command)[0] < FUZZY_LOWEST
