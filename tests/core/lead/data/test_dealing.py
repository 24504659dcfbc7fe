"""Chunks are dealt in the order of the workers' names, whatever the order in which workers join."""

from collections.abc import Iterable, Sequence
from itertools import permutations

import pytest

from polyrhythm.core.lead.data.leasing import Leasing
from polyrhythm.core.lead.members.view import Member
from polyrhythm.core.lead.rounds.modes import connect_mode
from polyrhythm.core.lead.state import begin_state, connect
from polyrhythm.core.seat import FIRST_SEAT
from polyrhythm.wire.messages import ChunkLease, Enrol, JobSpec

NAMES = ("worker-2", "worker-10", "worker-1")


class Job:
    """The data plan of a job with these members."""

    def __init__(self, names: Iterable[str], *, balances: bool = False, **options: object) -> None:
        if balances:
            options |= {"sync": "fsp", "migrate": "lease"}
        job = JobSpec(job="j", **options)  # type: ignore[arg-type]
        state = begin_state(job)
        parts = connect(job, state, FIRST_SEAT)
        self.view, self.plan = parts.view, parts.plan
        self.leasing = Leasing(parts, connect_mode(state.mode, parts))
        for name in names:
            self.join(name)

    def join(self, name: str) -> Member:
        member = self.view.admit(name, 0)
        self.view.enter(member)
        return member

    def enrol(self, member: Member, points: int = 1_000, batch: int = 10) -> Sequence[ChunkLease]:
        """Let the member announce its data set; returns the chunks in its lease."""
        assert self.leasing.on_enrol(Enrol(points=points, batch=batch), member, 0) is None
        return self.plan.lease(member.key).chunks

    def changed(self) -> list[str]:
        """The names of the members whose leases have changed since the last call."""
        members = {member.key: member.name for member in self.view.members()}
        return [members[key] for key in sorted(self.plan.take_changed()) if key in members]


def dealt(order: tuple[str, ...]) -> dict[str, list[tuple[int, int]]]:
    """Let workers with these names join in this order; return the points of each worker's
    chunks."""
    job = Job(order)
    return {
        member.name: [(chunk.first, chunk.last) for chunk in job.enrol(member)]
        for member in job.view.members()
    }


@pytest.mark.parametrize("order", list(permutations(NAMES)))
def test_a_name_gets_the_same_chunks_whenever_its_worker_joins(order: tuple[str, ...]) -> None:
    found = dealt(order)
    assert found == dealt(NAMES)
    assert found["worker-1"][0][0] == 0, "worker-1 comes before worker-2 and worker-10"
    assert sum(map(len, found.values())) == 48


@pytest.mark.parametrize(("balances", "chunks"), [(False, 12), (True, 100)])
def test_statistics_have_few_chunks_unless_passes_are_balanced(balances: bool, chunks: int) -> None:
    job = Job(NAMES, kind="statistics", balances=balances)
    leases = [job.enrol(member, 10_984, 64) for member in job.view.members()]
    assert sum(map(len, leases)) == chunks


def shared_with_late_worker(*, ends: bool, removed: bool = False) -> list[str]:
    """Let a worker join, and with `removed` another one be removed. Returns the names of the
    workers that get a new lease."""
    job = Job(NAMES, kind="statistics", epochs=2)
    for member in job.view.members():
        job.enrol(member)
    job.enrol(job.join("late"))
    gone = []
    if removed:
        first, *_ = job.view.members()
        job.view.remove(first.worker)
        gone = [first.key]
    job.changed()
    job.leasing.share_again(gone, ends=ends)
    return job.changed()


def test_a_worker_that_joins_gets_chunks_of_the_others_unless_the_job_ends() -> None:
    assert shared_with_late_worker(ends=False) == list(NAMES)
    assert shared_with_late_worker(ends=True) == []


def test_chunks_of_a_worker_that_leaves_get_new_holders_although_the_job_ends() -> None:
    assert "late" in shared_with_late_worker(ends=True, removed=True)


def test_only_chunks_of_statistics_are_shared_in_a_permuted_order() -> None:
    """Points of other kinds are permuted before they are dealt to chunks."""
    for whole in (False, True):
        job = Job(NAMES, kind="statistics" if whole else "gradient")
        for member in job.view.members():
            chunks = [chunk.chunk for chunk in job.enrol(member, 10_000)]
            neighbours = chunks[-1] - chunks[0] == len(chunks) - 1
            assert neighbours != whole, chunks
