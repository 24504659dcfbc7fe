"""A member cannot harm the job with names, reasons, numbers or models. For each rule, a test also
switches the rule off, to show that the test of the rule can fail."""

import random
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from polyrhythm.observe.reasons import in_words
from polyrhythm.wire.messages.reasons import Reason, failed
from tests.hostile.client import dial_node, hello_of
from tests.hostile.inputs import Inputs
from tests.hostile.nodes import Site

sys.path.insert(0, str(Path(__file__).parent.parent / "core"))
from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.lead import machine
from polyrhythm.core.lead.members import joining as admission
from polyrhythm.core.lead.rounds import counting
from polyrhythm.core.values import MOST_NAME, MOST_REASON, name_fault, plain
from polyrhythm.engines.inline import Hub, run_inline
from polyrhythm.errors import LinkError, UsageError
from polyrhythm.io.memory import memory_pair
from polyrhythm.learn.worker import Worker
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.server.node import ServerNode
from polyrhythm.tensors.optimizers import check_optimizer, describe_optimizer
from polyrhythm.wire import messages as m
from tests.core.stage import Stage, sent
from tests.hostile.leads import POLICIES

ODD = [float("nan"), float("inf"), float("-inf"), 1e308, -1e308, 1.7e308, 1e200, 5e-324]


def decoded(message: m.Message) -> m.Message:
    return m.DECODERS[m.EVENT_TYPES[type(message)]].decode(m.encode_head(message))


# -- numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [value for value in ODD if abs(value) != 5e-324])
def test_a_report_must_be_finite(value: float) -> None:
    with pytest.raises(msgspec.ValidationError):
        decoded(m.Report(worker=0, metrics={"accuracy": value}))


def test_two_reports_that_overflow_end_the_lead_when_they_are_not_refused() -> None:
    stage = Stage(workers=2, targets=(m.Target("accuracy", 0.9, True),), rounds=10).begin()
    for worker in range(2):
        stage.tell(m.Report(**stage.who(worker), metrics={"accuracy": 1e308}))
    with pytest.raises(OverflowError):
        for worker in range(2):
            stage.contribute(worker, 1)
        stage.folded(1)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e101])
def test_a_worker_omits_a_measure_that_is_not_finite_and_reports_that_once(
    value: float, capfd: pytest.CaptureFixture[str]
) -> None:
    def main(worker: Worker) -> None:
        model = torch.nn.Linear(1, 1)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        while not worker.stopped:
            worker.report(loss=value, accuracy=0.5)
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()

    run = run_inline(m.JobSpec(job="j", rounds=3), main)
    reports = [line["metrics"] for line in run.journal if line["what"] == "reported"]
    assert len(reports) >= 3 and all(report == {"accuracy": 0.5} for report in reports)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.endswith(f"worker-0 does not report loss={value}: it is not a finite number")


def train(policy: str, value: float) -> Stage:
    """Run rounds with trailers in which every number that no rule checks has this value."""
    goal = {"target_change": 1e-9, "targets": (m.Target("objective", -1e300, False),)}
    stage = Stage(workers=2, **POLICIES[policy], **goal).begin()
    for worker in range(2):
        stage.tell(m.Enrol(**stage.who(worker), points=8, batch=4))
    for sequence in range(1, 40):
        for worker in range(2):
            trailer = m.Trailer(
                **stage.who(worker),
                sequence=sequence,
                report=m.ContributionReport(
                    weight=float(2**53) if sequence % 2 else m.LEAST_WEIGHT,
                    objective=value if (sequence + worker) % 3 else -value,
                    probe=value if worker else -value,
                    probe_points=2**53 if sequence % 2 else 0,
                    compute_ns=2**53 if worker else 0,
                    wait_ns=2**53,
                    micro_ns=2**53 if worker else 0,
                    batch=1 if worker else 2**53,
                    steps=2**53 if worker else 0,
                    progress=tuple(m.ChunkProgress(chunk, sequence, 0) for chunk in range(8)),
                ),
            )
            stage.tell(decoded(trailer))
            arrived = {**stage.who(worker), "sequence": sequence, "round": sequence}
            stage.from_servers(m.Arrived, **arrived)
        stage.tick(1.0)
        stage.from_servers(m.Folded, round=sequence, weight=1.0)
    return stage


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("policy", POLICIES)
def test_no_objective_overflows_under_any_policy(policy: str, value: float) -> None:
    stage = train(policy, value)
    assert stage.why


def test_an_objective_overflows_when_it_is_not_kept_in_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(counting, "clamp", lambda report: report)
    with pytest.raises(OverflowError):
        train("bsp", 1e200)


@pytest.mark.parametrize("rate", [1e5, float("nan"), float("inf"), -1e300])
def test_a_rate_that_an_optimizer_cannot_multiply_is_refused(rate: float) -> None:
    with pytest.raises(msgspec.ValidationError):
        decoded(m.Contribution(worker=0, slices=1, rate=rate, weight=1.0))


# -- names and reasons -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x" * (MOST_NAME + 1), "a\x1b[2J", "a\nb", "\u202e", " ", ""])
def test_a_name_that_cannot_be_shown_is_refused_and_not_journalled(name: str) -> None:
    stage = Stage(workers=2)
    hello = m.WorkerHello(name=name, job="j", identity="")
    effects = stage.tell(ev.WorkerHelloReceived("link-1", hello))
    assert sent(effects, m.Refusal) and not sent(effects, m.Admitted)
    assert not [effect for effect in effects if len(name) > 1 and name in repr(effect)]


def test_a_long_name_is_admitted_when_names_are_not_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "name_fault", lambda name: None)
    assert sent(Stage(workers=2).hello("x" * 60_000), m.Admitted)


def test_reasons_are_cut_and_escaped() -> None:
    stage = Stage(workers=2, rounds=5).begin()
    effects = stage.tell(m.Leave(**stage.who(0), reason=failed("\x1b[2J" * 5_000)))
    (left,) = [e for e in effects if isinstance(e, fx.Note) and e.what == "left"]
    detail = left.fields["fields"]["detail"]
    assert len(detail) <= MOST_REASON and detail.isprintable()


def test_reasons_are_not_cut_when_the_rule_is_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "plain_reason", lambda reason: reason)
    stage = Stage(workers=2, rounds=5).begin()
    effects = stage.tell(m.Leave(**stage.who(0), reason=failed("x" * 5_000)))
    (left,) = [e for e in effects if isinstance(e, fx.Note) and e.what == "left"]
    assert len(left.fields["fields"]["detail"]) == 5_000


@pytest.mark.parametrize("length", [0, 999, 1_000, 1_001, 60_000])
def test_reasons_are_shown_as_plain_text(length: int) -> None:
    for character in ("x", "\x00", "\U0001f600"):
        made = plain(character * length)
        assert len(made) <= MOST_REASON and made.isprintable()
    assert name_fault("x" * 200) == Reason("name-too-long", {"characters": 200, "most": MOST_NAME})
    assert name_fault("anna") is None


# -- models ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec",
    [
        m.OptimizerSpec("Nothing", ({"lr": 0.1},)),
        m.OptimizerSpec("__class__", ({"lr": 0.1},)),
        m.OptimizerSpec("SGD", ({"lr": -1.0},)),
        m.OptimizerSpec("Adam", ({"lr": 0.1, "betas": "x"},)),
        m.OptimizerSpec("SGD", ({},)),
        m.OptimizerSpec("SGD", ()),
    ],
    ids=repr,
)
def test_an_optimizer_that_cannot_be_built_is_refused(spec: m.OptimizerSpec) -> None:
    with pytest.raises(UsageError):
        check_optimizer(spec)


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad", "Rprop", "ASGD"])
def test_honest_optimizers_are_accepted(name: str) -> None:
    optimizer = getattr(torch.optim, name)([torch.nn.Parameter(torch.zeros(2))])
    check_optimizer(decoded(_attach(describe_optimizer(optimizer))).spec.optimizer)


def test_every_other_model_than_the_accepted_one_is_checked() -> None:
    hub = Hub()
    node = ServerNode(
        0, m.JobSpec(job="j"), hub.address(0), lead=True, options=NodeOptions(), shared=False
    )
    link, _ = memory_pair("w0", "lead")
    good = _attach(m.OptimizerSpec("SGD", ({"lr": 0.1},)))
    bad = _attach(m.OptimizerSpec("SGD", ({"lr": -1.0},)))
    try:
        for _ in range(2):
            assert node._take_for_lead(link, decoded(good), None)
            for _ in range(2):
                with pytest.raises(LinkError, match="Invalid learning rate"):
                    node._take_for_lead(link, decoded(bad), None)
    finally:
        node.close()


def _attach(optimizer: m.OptimizerSpec) -> m.Attach:
    return m.Attach(spec=m.ModelSpec((m.TensorSpec("w", (2,), "float32", 0, (1,)),), optimizer))


def test_a_model_larger_than_any_memory_is_refused() -> None:
    stage = Stage(workers=2)
    stage.hello("anna")
    tensor = m.TensorSpec("w", (2**53, 2**20), "float32", 0, (1, 1))
    spec = m.ModelSpec((tensor,), m.OptimizerSpec("SGD", ({"lr": 0.1},)))
    assert "can be held" in in_words(sent(stage.attach(0, spec), m.Refusal)[0].reason)


# -- over a link -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "fields", "reason"),
    [
        (m.Seed, {"slice": 0, "routing": 1}, "initial parameters after training had begun"),
        (m.Report, {"metrics": {"accuracy": 1e308}}, "cannot be read"),
        (m.Contribution, {"slices": 1, "weight": 1.0, "worker": 99}, "in the name of another"),
    ],
)
def test_a_member_is_refused_with_the_reason(
    kind: type[m.Message], fields: dict[str, Any], reason: str
) -> None:
    site = Site("asp", servers=1, replicas=0)
    try:
        site.trains_on()
        wire = dial_node(site.servers[0].welcome)
        admitted = wire.enter(hello_of("mallory", "fuzzed"))
        assert admitted is not None
        me = {"worker": admitted.worker, "incarnation": admitted.incarnation}
        wire.send(Inputs(random.Random(1)).frame(kind(**{**me, **fields}), [bytes(64)] * 1))
        assert reason in (wire.await_end() or "")
        wire.close()
        site.trains_on()
        assert not site.failures
    finally:
        site.close()
