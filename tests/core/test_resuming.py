"""Whether a job that has lost slices resumes from its newest checkpoint, and with which options."""

import pytest

from polyrhythm.core.supervision import Loss, NewestCheckpoint, Resuming
from polyrhythm.wire.messages import JobSpec


def job(**fields: object) -> JobSpec:
    return JobSpec(**{"job": "j", "servers": 3, "replicas": 2, "on_loss": "resume", **fields})


@pytest.mark.parametrize(
    ("reason", "applies"),
    [(None, True), ("slices-lost", True), ("server-died", True), ("deserted", False)],
)
def test_only_a_loss_of_parameters_rolls_back(reason: str | None, applies: bool) -> None:
    assert Resuming(job()).applies(Loss(reason, 1, 9)) == applies
    assert not Resuming(job(on_loss="end")).applies(Loss(reason, 1, 9))


@pytest.mark.parametrize(
    ("respawn", "lost", "servers", "replicas"),
    [(False, 0, 2, 1), (False, 1, 2, 1), (False, 2, 1, 0), (False, 3, 1, 0), (True, 2, 3, 2)],
)
def test_dead_servers_are_missing_unless_they_are_started_again(
    respawn: bool, lost: int, servers: int, replicas: int
) -> None:
    spec = job(respawn=respawn)
    again, why = Resuming(spec).decide(Loss("slices-lost", lost, 9), NewestCheckpoint(4, 7), spec)
    assert again is not None and (again.servers, again.replicas) == (servers, replicas)
    assert (why.code, why.fields["number"], why.fields["lost"]) == ("rolled-back", 4, 2)


@pytest.mark.parametrize(("server", "servers"), [(2, 2), (3, 3)])
def test_the_death_of_a_server_that_joined_later_leaves_all_first_servers(
    server: int, servers: int
) -> None:
    loss = Loss("server-died", 0, 9, server)
    again, why = Resuming(job()).decide(loss, NewestCheckpoint(4, 7), job())
    assert again is not None and again.servers == servers
    assert why.fields["left"] == servers


def test_a_job_that_makes_no_new_checkpoint_is_resumed_three_times_and_then_ends() -> None:
    spec, loss = job(), Loss("slices-lost", 1, 9)
    resuming = Resuming(spec)
    decided = [resuming.decide(loss, NewestCheckpoint(4, 7), spec) for _ in range(4)]
    assert [again is not None for again, _ in decided] == [True, True, True, False]
    assert decided[-1][1].code == "resumed-in-vain"
    again, _ = resuming.decide(loss, NewestCheckpoint(5, 8), spec)
    assert again is not None, "a new checkpoint is progress"
