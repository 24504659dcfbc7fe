"""Replicas do not change the result. The parameters are the same with and without replicas, on
primaries and on replicas, and if a server is lost in the middle."""

import functools
from typing import Any

import pytest
import torch

from polyrhythm import Worker
from polyrhythm.engines import inline
from polyrhythm.io.link import Link
from polyrhythm.runtime.server.node import ServerNode
from polyrhythm.wire.messages import JobSpec
from tests.learn import twin_job as tj

TOLERANCE = 1e-5
MIDDLE = 5
"""The round after which a server is lost."""
twin = functools.cache(tj.twin)
local_twin = functools.cache(tj.local_twin)


class Gone:
    """A stand-in for a closed server: it accepts no link."""

    def welcome(self, link: Link) -> None:
        link.close()

    def close(self) -> None: ...


class Stage(inline.Hub):
    """The links of the running job, through which a worker can stop a server."""

    now: "Stage"

    def __init__(self) -> None:
        super().__init__()
        Stage.now = self

    def lose(self, server: int) -> None:
        node: Any = self.servers[server]
        self.servers[server] = Gone()  # type: ignore[call-overload]
        node.close()


@pytest.fixture(autouse=True)
def stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "Hub", Stage)


def run(
    job: JobSpec,
    optimizer: str,
    steps: int = 1,
    lose: int | None = None,
    look: bool = False,
    when: int = MIDDLE,
) -> tuple[tj.State, list[dict[str, Any]]]:
    """Run the job, and return worker-0's final state and the journal. `lose`: the server that is
    lost after round `when`. `look`: at the end, compare every replica with its primary."""
    found: dict[str, tj.State] = {}

    def main(worker: Worker) -> None:
        number = int(worker.name.removeprefix("worker-"))
        model = tj.build()
        optimizer_ = worker.attach(model, tj.OPTIMIZERS[optimizer](model))
        scheduler = tj.schedule(optimizer_)
        while not worker.stopped:
            if number == 0 and lose is not None and worker.version == when:
                Stage.now.lose(lose)
            for local in range(steps):
                points, labels = tj.batch(number, worker.version * steps + local)
                tj.loss_of(model, points, labels).backward()
                optimizer_.step(points=len(labels))
            scheduler.step()
        found[worker.name] = {name: t.clone() for name, t in model.state_dict().items()}
        if number == 0 and look:
            assert_copies_equal(job)

    journal = inline.run_inline(job, main, timeout_s=60).journal
    for state in found.values():
        assert all(torch.equal(state[name], found["worker-0"][name]) for name in state)
    return found["worker-0"], journal


def store_of(server: int) -> Any:
    node = Stage.now.servers[server]
    assert isinstance(node, ServerNode)
    return node.slices.store


def assert_copies_equal(job: JobSpec) -> None:
    """Assert that all servers that hold a slice have equal parameters and updater state for it."""
    compared = 0
    nodes = [
        number for number, node in enumerate(Stage.now.servers) if isinstance(node, ServerNode)
    ]
    for server in nodes:
        its = store_of(server)
        for held in its.primary.held:
            route = its.rules.held(held.slice.id).route
            assert len(route.replicas) == job.replicas
            theirs = its.primary.export(held.slice.id)
            for replica in route.replicas:
                copy = store_of(replica).follower.replicas.export(held.slice.id)
                assert copy.keys() == theirs.keys()
                for name, tensor in theirs.items():
                    assert torch.equal(copy[name], tensor), f"slice {held.slice.id}: {name}"
                    compared += 1
    assert compared >= 10


def job(replicas: int, **more: Any) -> JobSpec:
    fields: dict[str, Any] = {"workers": 2, "servers": 3, "rounds": tj.ROUNDS, "slice_nbytes": 256}
    return JobSpec(job="twin", replicas=replicas, heartbeat_s=20.0, **{**fields, **more})


@functools.cache
def without_replicas(optimizer: str) -> tj.State:
    return run(job(0), optimizer)[0]


@pytest.mark.guarantee("same-as-without", policies=("bsp",))
@pytest.mark.parametrize("optimizer", ["momentum", "adam", "adamw"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_replicas_do_not_change_the_result_and_equal_their_primaries(
    replicas: int, optimizer: str
) -> None:
    with_them, _ = run(job(replicas), optimizer, look=True)
    assert tj.distance(with_them, without_replicas(optimizer)) < TOLERANCE
    assert tj.distance(with_them, twin(2, optimizer)) < TOLERANCE


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_with_one_worker_the_result_with_replicas_is_bit_identical(optimizer: str) -> None:
    """With several workers, contributions may be added in another order, and so be rounded
    differently."""
    with_them, _ = run(job(1, workers=1), optimizer, look=True)
    without, _ = run(job(0, workers=1), optimizer)
    assert tj.distance(with_them, without) == 0.0


def test_replicas_with_kind_local() -> None:
    fields = {"kind": "local", "local_steps": 3, "rounds": 8}
    state, _ = run(job(1, **fields), "momentum", steps=3, look=True)
    assert tj.distance(state, local_twin(2, "momentum", 3, rounds=8)) < TOLERANCE


def test_replicas_with_bf16_on_the_wire() -> None:
    with_them, _ = run(job(1, workers=1, wire_dtype="bf16"), "momentum", look=True)
    without, _ = run(job(0, workers=1, wire_dtype="bf16"), "momentum")
    assert tj.distance(with_them, without) == 0.0


@pytest.mark.guarantee("lost-in-the-middle", policies=("bsp",), k=(1,))
@pytest.mark.parametrize("optimizer", ["momentum", "adam", "adamw"])
@pytest.mark.parametrize("server", [1, 2])
def test_losing_a_server_in_the_middle_does_not_change_the_result(
    server: int, optimizer: str
) -> None:
    """Each batch depends only on the worker and the round, so the result shows that every
    contribution counts once."""
    state, journal = run(job(1), optimizer, lose=server, look=True)
    assert [line["server"] for line in journal if line["what"] == "server-lost"] == [server]
    assert tj.distance(state, twin(2, optimizer)) < TOLERANCE


@pytest.mark.guarantee("lost-before-the-first-fold", policies=("bsp",), k=(1,))
@pytest.mark.parametrize("server", [1, 2])
def test_losing_a_server_before_the_first_fold_does_not_change_the_result(server: int) -> None:
    """Before the first fold, the replicas hold the parameters of the worker that seeded the job."""
    state, journal = run(job(1), "momentum", lose=server, look=True, when=0)
    assert [line["server"] for line in journal if line["what"] == "server-lost"] == [server]
    assert tj.distance(state, twin(2, "momentum")) < TOLERANCE


def test_losing_a_server_with_kind_local() -> None:
    fields = {"kind": "local", "local_steps": 3, "rounds": 10}
    state, _ = run(job(1, **fields), "momentum", steps=3, lose=1)
    assert tj.distance(state, local_twin(2, "momentum", 3, rounds=10)) < TOLERANCE


def test_losing_a_server_with_bf16_on_the_wire() -> None:
    undisturbed, _ = run(job(1, workers=1, wire_dtype="bf16"), "momentum")
    disturbed, _ = run(job(1, workers=1, wire_dtype="bf16"), "momentum", lose=1)
    assert tj.distance(disturbed, undisturbed) < TOLERANCE


@pytest.mark.parametrize("lose", [None, 1, 2])
@pytest.mark.parametrize("outer", ["nesterov:lr=0.7,momentum=0.9", "adam:lr=0.01,beta2=0.95"])
def test_the_state_of_the_outer_optimizer_survives_the_loss_of_a_server(
    outer: str, lose: int | None
) -> None:
    fields = {"kind": "local", "local_steps": 3, "rounds": 10, "outer": outer}
    state, journal = run(job(1, **fields), "momentum", steps=3, lose=lose, look=True)
    lost = [line["server"] for line in journal if line["what"] == "server-lost"]
    assert lost == ([] if lose is None else [lose])
    assert tj.distance(state, local_twin(2, "momentum", 3, 10, outer)) < TOLERANCE
