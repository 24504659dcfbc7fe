"""RayPS: partitioned data and parameters, replicas and fault tolerance. Each test quotes the sentence
that it checks.

Not tested here: checkpoints ("the system can resume training from the saved checkpoints"), see
`tests/sim/test_cuts.py`; Ray's actors, see `tests/cluster/test_ray_cluster.py` and
`tests/cluster/test_ray_ledger.py`; the experiments, see `benchmarks/ray`.
"""

from collections import Counter

import pytest

from polyrhythm.core.placement.ring import Ring
from polyrhythm.learn.points import Points
from tests.core.lead.data.plans import plan_of
from tests.papers.simulated import Simulated

SLICES = 120


def primaries(servers: list[int], current: dict[int, int] | None = None) -> dict[int, int]:
    """The primary of every slice on a ring of these servers. A slice stays with its primary in
    `current` if possible."""
    staying = {slice_: [server] for slice_, server in (current or {}).items()}
    routes = Ring(servers).place(SLICES, current=staying)
    return {slice_: route.primary for slice_, route in enumerate(routes)}


# -- data ------------------------------------------------------------------------------------------


def test_data_is_distributed_evenly() -> None:
    """ "By doing so, we ensure an even distribution of data among the workers, mitigating the risk of
    any individual worker becoming a performance bottleneck." """
    plan = plan_of(points=1000, workers=3, seed=0, epochs=1)
    members = [(worker, 1) for worker in range(3)]
    plan.share(members)
    shares = [sum(chunk.points for chunk in plan.chunks if chunk.holder == m) for m in members]
    assert sum(shares) == 1000
    assert max(shares) - min(shares) <= max(chunk.points for chunk in plan.chunks)


def test_shards_are_sampled_randomly() -> None:
    """ "This scheme involves randomly sampling a sub-dataset for each worker.": a worker's points come
    from all parts of the data set, also if the data set is sorted."""
    plan = plan_of(points=1000, workers=2, seed=5, epochs=1)
    plan.share([(0, 1), (1, 1)])
    lease = plan.lease((0, 1))
    points = Points(lease)
    drawn = []
    while len(indices := points.next(50)[0]):
        drawn += [int(index) for index in indices]
    assert len(set(drawn)) == len(drawn) == sum(c.last - c.first for c in lease.chunks)
    tenths = Counter(index // 100 for index in drawn)
    assert len(tenths) == 10 and min(tenths.values()) > 20


# -- parameters ------------------------------------------------------------------------------------


def test_parameters_are_partitioned_among_servers() -> None:
    """ "we can also partition the model parameters among servers": every slice has one server, and no
    server holds more than its share."""
    loads = Counter(primaries([0, 1, 2]).values())
    assert loads == {0: 40, 1: 40, 2: 40}


def test_a_server_that_leaves_moves_only_its_own_key_range() -> None:
    """ "its flexibility in accommodating server additions or removals without requiring extensive
    rebalancing of key ranges among the remaining servers": when a server leaves, only its own
    slices move."""
    before = primaries([0, 1, 2, 3])
    after = primaries([0, 2, 3], current=before)
    moved = {slice_ for slice_ in before if before[slice_] != after[slice_]}
    assert moved == {slice_ for slice_, server in before.items() if server == 1}


def test_a_server_that_joins_takes_only_its_share() -> None:
    """When a server joins, slices move only to this server, and no more than its share."""
    before = primaries([0, 2, 3])
    after = primaries([0, 1, 2, 3], current=before)
    moved = {slice_ for slice_ in before if before[slice_] != after[slice_]}
    assert {after[slice_] for slice_ in moved} == {1}
    assert len(moved) == SLICES / 4


def test_the_slices_of_a_server_that_leaves_are_distributed_evenly() -> None:
    """ "This random assignment ensures that the departure of a server does not disproportionately
    burden the other servers, maintaining a balanced distribution of key ranges": the other servers
    get equally many slices."""
    before = primaries([0, 1, 2, 3])
    loads = Counter(primaries([0, 2, 3], current=before).values())
    assert loads == {0: 40, 2: 40, 3: 40}


# -- replicas ----------------------------------------------------------------------------------


def test_with_three_servers_and_two_replicas_each_server_has_all_slices() -> None:
    """ "Let's consider a scenario where we have three servers in the system and k = 2. In this case,
    server 1 stores replicas of the key ranges belonging to both server 2 and server 3 (...) Similarly,
    server 2 and server 3 also hold replicas of the key ranges owned by the other two servers." So
    each of three servers holds all slices, as a primary or as a replica."""
    routes = Ring([1, 2, 3]).place(SLICES, 2)
    for server in (1, 2, 3):
        copied = {route.primary for route in routes if server in route.replicas}
        assert copied == {1, 2, 3} - {server}
        assert all(server in route.holders for route in routes)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_replicas_are_on_k_other_servers(k: int) -> None:
    """ "Each server node stores a replica of k counterclockwise neighbor key ranges relative to the
    one it owns." On a ring with virtual nodes, the replicas of a slice are on the next k other
    servers clockwise from the slice's hash."""
    ring = Ring(range(5))
    for slice_, route in enumerate(ring.place(SLICES, k)):
        met = [server for server in ring.clockwise(slice_) if server != route.primary]
        assert list(route.replicas) == met[:k]
        assert len({route.primary, *route.replicas}) == k + 1


# -- fault tolerance -------------------------------------------------------------------------------

JOB = """
[job]
sync = "{sync}"
kind = "{kind}"
epochs = 2
points = 1000
batch = 10
servers = 3
replicas = 2
timer = "off"
model = "10kB"
slice = "1kB"
[[workers]]
count = 3
step = "10ms"
"""
CRASH = '[[events]]\nat = "{at}"\nwhat = "crash"\n{who}\n'
WORKERS = CRASH.format(at="200ms", who='worker = "worker-0"') + CRASH.format(
    at="400ms", who='worker = "worker-2"'
)
SERVERS = CRASH.format(at="300ms", who="server = 1") + CRASH.format(at="300ms", who="server = 2")
SYNCS = ["bsp", "ssp:2", "asp", "psp", "fsp"]


def job(sync: str, *events: str) -> Simulated:
    kind = "local" if sync == "psp" else "gradient"
    return Simulated(JOB.format(sync=sync, kind=kind) + "".join(events))


@pytest.mark.guarantee("worker-killed", k=(2,))
@pytest.mark.parametrize("sync", SYNCS)
def test_other_workers_take_the_load_of_a_disconnected_one(sync: str) -> None:
    """ "once a worker from a pool of workers is disconnected, the training will not be terminated, and
    other workers can take the load of the disconnected worker and carry on" """
    run = job(sync, WORKERS)
    assert not run.end.failed
    assert run.result["passes"] == 2 and run.result["points"] == 2 * 1000


@pytest.mark.guarantee("servers-killed", k=(2,))
@pytest.mark.parametrize("sync", SYNCS)
def test_training_goes_on_with_one_worker_and_one_server(sync: str) -> None:
    """ "the system can continue to work even if workers or servers are terminated during the
    training process, as long as there is at least one worker and one server available". Here that
    server must be the one with the lead."""
    run = job(sync, WORKERS, SERVERS)
    assert not run.end.failed
    assert run.result["passes"] == 2 and run.result["points"] == 2 * 1000
    assert {line["server"] for line in run.noted("server-lost")} == {1, 2}
    contents = run.contents()
    assert contents and all(found == contents[0] for found in contents), "one ledger in every slice"
