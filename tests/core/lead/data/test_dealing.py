"""Chunks are dealt in the order of the workers' names, whatever the order in which workers join."""

from itertools import permutations

import pytest

from polyrhythm.core.lead.data.sharing import Sharing
from polyrhythm.core.lead.members.view import View
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.wire.messages import Enrol, JobSpec, Leased

NAMES = ("worker-2", "worker-10", "worker-1")


def sharing_of(*, balances: bool = False, **options: object) -> Sharing:
    if balances:
        options |= {"sync": "fsp", "migrate": "lease"}
    job = JobSpec(job="j", **options)  # type: ignore[arg-type]
    return Sharing(job, traits_of(job.sync))


def dealt(order: tuple[str, ...]) -> dict[str, list[tuple[int, int]]]:
    """Let workers with these names join in this order; return the points of each worker's
    chunks."""
    view, sharing = View(), sharing_of()
    for name in order:
        view.enter(view.admit(name, 0))
    found = {}
    for member in view.members():
        lease = sharing.on_enrol(member, Enrol(points=1_000, batch=10), view)
        assert isinstance(lease, Leased)
        found[member.name] = [(chunk.first, chunk.last) for chunk in lease.chunks]
    return found


@pytest.mark.parametrize("order", list(permutations(NAMES)))
def test_a_name_gets_the_same_chunks_whenever_its_worker_joins(order: tuple[str, ...]) -> None:
    found = dealt(order)
    assert found == dealt(NAMES)
    assert found["worker-1"][0][0] == 0, "worker-1 comes before worker-2 and worker-10"
    assert sum(map(len, found.values())) == 48


@pytest.mark.parametrize(("balances", "chunks"), [(False, 12), (True, 100)])
def test_statistics_have_few_chunks_unless_passes_are_balanced(balances: bool, chunks: int) -> None:
    view = View()
    sharing = sharing_of(kind="statistics", balances=balances)
    for name in NAMES:
        view.enter(view.admit(name, 0))
    leases = [
        sharing.on_enrol(member, Enrol(points=10_984, batch=64), view) for member in view.members()
    ]
    assert sum(len(lease.chunks) for lease in leases if isinstance(lease, Leased)) == chunks


def shared_with_late_worker(*, ends: bool, removed: bool = False) -> list[str]:
    """Let a worker join, and with `removed` another one be removed. Returns the names of the
    workers that get a new lease."""
    view = View()
    sharing = sharing_of(kind="statistics", epochs=2)
    for name in NAMES:
        view.enter(view.admit(name, 0))
    for member in view.members():
        sharing.on_enrol(member, Enrol(points=1_000, batch=10), view)
    late = view.admit("late", 0)
    view.enter(late)
    sharing.on_enrol(late, Enrol(points=1_000, batch=10), view)
    gone = []
    if removed:
        first, *_ = view.members()
        view.remove(first.worker)
        gone = [first.key]
    sharing.take_leases(view)
    sharing.share_again(view, gone, ends=ends)
    return [member.name for member, _ in sharing.take_leases(view)]


def test_a_worker_that_joins_gets_chunks_of_the_others_unless_the_job_ends() -> None:
    assert shared_with_late_worker(ends=False) == list(NAMES)
    assert shared_with_late_worker(ends=True) == []


def test_chunks_of_a_worker_that_leaves_get_new_holders_although_the_job_ends() -> None:
    assert "late" in shared_with_late_worker(ends=True, removed=True)


def test_only_chunks_of_statistics_are_shared_in_a_permuted_order() -> None:
    """Points of other kinds are permuted before they are dealt to chunks."""
    for whole in (False, True):
        view, sharing = View(), sharing_of(kind="statistics" if whole else "gradient")
        for name in NAMES:
            view.enter(view.admit(name, 0))
        for member in view.members():
            lease = sharing.on_enrol(member, Enrol(points=10_000, batch=10), view)
            assert isinstance(lease, Leased)
            chunks = [chunk.chunk for chunk in lease.chunks]
            neighbours = chunks[-1] - chunks[0] == len(chunks) - 1
            assert neighbours != whole, chunks
