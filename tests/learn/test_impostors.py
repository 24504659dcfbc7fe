"""A peer may send messages only in its own name. A message that only the lead may send is refused
from any other peer."""

import threading
from collections.abc import Callable

import pytest
import torch

from polyrhythm import Worker
from polyrhythm.core.server import admission
from polyrhythm.engines.inline import run_inline
from polyrhythm.errors import LinkError
from polyrhythm.io.link import Link
from polyrhythm.observe.reasons import in_words
from polyrhythm.wire import messages as m
from polyrhythm.wire.digests import Digest
from polyrhythm.wire.frames import MEMBER
from polyrhythm.wire.messages.reasons import refused

ROUNDS = 20


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server refuses a peer that the lead has not announced after a short time."""
    monkeypatch.setattr(admission, "WAIT_NS", 300_000_000)


def attack_in_the_middle(
    server: int, hello: Callable[[str], m.WorkerHello | m.ServerHello], message: m.Message
) -> list[m.Message]:
    """Run a job in which worker-0 opens a second link under another identity in round 5, and sends
    `message` on it. Return the messages that came back. The job must reach its goal."""
    heard: list[m.Message] = []

    def say_hello(link: Link, job: str) -> None:
        link.send(hello(job))
        answer, _ = link.receive()
        heard.append(answer)
        if isinstance(answer, m.HelloReply):
            link.agree(Digest(answer.digest), MEMBER)
            link.send(message)
            try:
                while True:
                    heard.append(link.receive()[0])
            except LinkError:
                pass  # the server has refused this peer and closed the link, as it should

    def main(worker: Worker) -> None:
        model = torch.nn.Linear(4, 4)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        while not worker.stopped:
            if worker.version == 5 and worker.name == "worker-0":
                hub = worker._node._links._dialer
                link = hub.dial(hub.address(server), f"s{server}")
                talk = threading.Thread(target=say_hello, args=(link, "impostors"), daemon=True)
                talk.start()
                talk.join(10)  # the thread ends soon if the server refuses the peer
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step(points=2)

    job = m.JobSpec(job="impostors", workers=2, servers=2, rounds=ROUNDS, timer="off")
    run = run_inline(job, main, timeout_s=60)
    assert run.outcome is not None and not run.outcome.failed
    contributions = [line["contributions"] for line in run.journal if line["what"] == "rounds"]
    assert sum(contributions) == 2 * ROUNDS
    return heard


def as_server(job: str) -> m.ServerHello:
    address = m.Address("memory", 9, "", "")
    return m.ServerHello(
        server=9, name="s9", job=job, address=address, identity="", digests=(Digest.NONE,)
    )


def as_worker(job: str) -> m.WorkerHello:
    return m.WorkerHello(worker=9, name="nine", job=job, identity="", digests=(Digest.NONE,))


ORDERS = [
    m.Stop(server=9, worker=9, reason=refused("go home")),
    m.Fold(server=9, worker=9, round=6),
    m.Place(server=9, worker=9, spec=m.ModelSpec((), m.OptimizerSpec("SGD", ())), routes=()),
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
@pytest.mark.parametrize("hello", [as_server, as_worker])
def test_orders_of_the_lead_are_refused_from_others(
    hello: Callable[[str], m.WorkerHello | m.ServerHello], order: m.Message
) -> None:
    heard = attack_in_the_middle(1, hello, order)
    assert isinstance(heard[-1], m.Refusal)


def test_a_contribution_from_a_worker_that_was_not_admitted_is_refused() -> None:
    slice_ = m.Contribution(worker=9, incarnation=3, sequence=1, slices=1, weight=1.0, slice=0)
    heard = attack_in_the_middle(1, as_worker, slice_)
    assert isinstance(heard[-1], m.Refusal)


def test_a_worker_that_the_lead_has_not_admitted_gets_no_link_to_a_server() -> None:
    heard = attack_in_the_middle(1, as_worker, m.Pull(worker=0, round=6))
    assert isinstance(heard[-1], m.Refusal)
    assert "the incarnation of an admitted worker" in in_words(heard[-1].reason)


def test_a_worker_of_another_job_is_refused() -> None:
    heard = attack_in_the_middle(1, lambda _: as_worker("another job"), m.Pull(worker=9, round=6))
    assert isinstance(heard[-1], m.Refusal)
    assert "belongs to another job" in in_words(heard[-1].reason)
