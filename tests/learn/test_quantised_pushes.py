"""Jobs with `--push int8`. The links of an inline job carry references to memory, so pushes over
them stay exact. Most of these tests therefore let the worker treat the links as links that carry
bytes."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from polyrhythm import Worker
from polyrhythm.core.placement.slices import lay_out
from polyrhythm.engines.inline import run_inline
from polyrhythm.io.memory import MemoryLink
from polyrhythm.observe.summary import summarise
from polyrhythm.runtime.worker.push import Quantising
from polyrhythm.tensors.quantised import read_quantised
from polyrhythm.wire.messages import Contribution, JobSpec, ModelSpec, OptimizerSpec, TensorSpec
from tests.learn import twin_job as tj

POLICIES = [
    {"sync": "bsp"},
    {"sync": "bsp", "deterministic": True},
    {"sync": "bsp", "replicas": 1, "servers": 2},
    {"sync": "ssp:2"},
    {"sync": "asp", "replicas": 1, "servers": 2},
    {"sync": "bsp", "kind": "local", "local_steps": 3},
    {"sync": "bsp", "kind": "local", "local_steps": 3, "outer": "nesterov:lr=0.7,momentum=0.5"},
    {"sync": "psp", "kind": "local"},
    {"sync": "fsp", "kind": "local", "interval": "5ms"},
    {"sync": "fsp", "kind": "gradient", "interval": "5ms"},
    {"sync": "bsp", "wire_dtype": "bf16"},
]


class Frames:
    """The slices of contributions that were sent, with their payloads."""

    def __init__(self) -> None:
        self.sent: list[tuple[Contribution, bytes]] = []
        self._lock = threading.Lock()

    def record(self, message: Any, payload: Sequence[Any]) -> None:
        if isinstance(message, Contribution):
            data = b"".join(bytes(getattr(part, "memory", part)) for part in payload)
            with self._lock:
                self.sent.append((message, data))


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> Frames:
    """The frames of a job whose workers quantise."""
    frames, send = Frames(), MemoryLink.send

    def sending(self: MemoryLink, message: Any, payload: Sequence[Any] = (), **rest: Any) -> None:
        frames.record(message, payload)
        send(self, message, payload, **rest)

    monkeypatch.setattr(MemoryLink, "send", sending)
    monkeypatch.setattr(Quantising, "by_reference", lambda self: frozenset())
    return frames


def job_of(**fields: object) -> JobSpec:
    common = {"job": "int8", "push": "int8", "workers": 2, "timer": "off", "heartbeat_s": 20.0}
    return JobSpec(**{**common, **fields})


@pytest.mark.parametrize("fields", POLICIES, ids=lambda fields: "-".join(map(str, fields.values())))
def test_a_job_learns_under_every_policy(frames: Frames, fields: dict[str, object]) -> None:
    """Least squares with weights of different sizes."""
    final: list[torch.Tensor] = []
    wanted = torch.tensor([3.0, -0.03, 0.3, 0.0])

    def main(worker: Worker) -> None:
        model = torch.nn.Linear(4, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
        for points, labels in worker.batches((inputs, inputs @ wanted[:, None]), 8):
            loss = torch.nn.functional.mse_loss(model(points), labels)
            loss.backward()
            optimizer.step(objective=loss)
        final.append(model.weight.detach().clone().view(-1))

    # under psp and fsp the number of rounds in a pass depends on the load
    goal = {"rounds": 60} if fields["sync"] in ("psp", "fsp") else {"epochs": 16}
    run_inline(job_of(**goal, **fields), main, timeout_s=120)
    assert len(final) == 2
    for weights in final:
        torch.testing.assert_close(weights, wanted, rtol=0, atol=0.02)
    assert frames.sent and all(message.quantised for message, _ in frames.sent)


def run_twin(frames: Frames, rounds: int, **fields: object) -> tj.State:
    """Train the model of `twin_job`, which has BatchNorm and several parameter groups."""
    found: dict[str, tj.State] = {}

    def main(worker: Worker) -> None:
        model = tj.train(worker, "momentum")
        found[worker.name] = {name: t.clone() for name, t in model.state_dict().items()}

    run_inline(job_of(rounds=rounds, slice_nbytes=512, **fields), main, timeout_s=60)
    return found["worker-0"]


def test_a_model_with_batchnorm_stays_close_to_plain_torch(frames: Frames) -> None:
    rounds = 20
    exact = tj.twin(2, "momentum", rounds)
    far = tj.distance(run_twin(frames, rounds), exact)
    assert 0 < far < 0.05
    assert tj.distance(tj.twin(2, "momentum", rounds // 2), exact) > 4 * far
    forms = {message.quantised for message, _ in frames.sent if message.parts is not None}
    assert forms == {False}, "buffers are sent exactly"


@pytest.mark.parametrize("push", ["exact", "int8"])
def test_the_bytes_of_sparse_gradients_are_those_that_were_sent(frames: Frames, push: str) -> None:
    def main(worker: Worker) -> None:
        model = torch.nn.Embedding(1000, 16, sparse=True)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        step = 0
        while not worker.stopped:
            step += 1
            model(torch.arange(step, step + 5)).square().mean().backward()
            optimizer.step(points=5)

    job = job_of(rounds=5, servers=2, push=push)
    run = run_inline(job, main, timeout_s=60)
    result = summarise(run.journal, job)
    counted = [data for message, data in frames.sent if message.round <= 5]
    assert result["bytes_pushed"] == sum(map(len, counted))
    assert 0 < result["bytes_pushed"] < 5 * 2 * 1000 * 16 * 4 / 20


def test_the_bytes_of_the_summary_are_those_that_were_sent(frames: Frames) -> None:
    def main(worker: Worker) -> None:
        model = torch.nn.Linear(100, 30)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
        while not worker.stopped:
            model(torch.ones(2, 100)).square().mean().backward()
            optimizer.step(points=2)

    job = job_of(rounds=5, servers=2)
    run = run_inline(job, main, timeout_s=60)
    result = summarise(run.journal, job)
    counted = [data for message, data in frames.sent if message.round <= 5]
    assert result["bytes_pushed"] == sum(map(len, counted))
    assert result["bytes_pushed"] <= 0.26 * 5 * 2 * 4 * (100 * 30 + 30 + 32)


def test_a_parameter_without_a_gradient_is_not_decayed(frames: Frames) -> None:
    final: list[torch.Tensor] = []

    def main(worker: Worker) -> None:
        model = torch.nn.ModuleDict({"used": torch.nn.Linear(8, 4), "idle": torch.nn.Linear(3, 3)})
        torch.nn.init.ones_(model["idle"].weight)
        optimizer = worker.attach(
            model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        )
        while not worker.stopped:
            model["used"](torch.ones(2, 8)).square().mean().backward()
            optimizer.step(points=2)
        final.append(model["idle"].weight.detach().clone())

    run_inline(job_of(rounds=4), main, timeout_s=60)
    assert frames.sent[0][0].quantised
    assert all(torch.equal(weight, torch.ones(3, 3)) for weight in final)


def test_the_steps_of_several_models_leave_the_others_as_they_are(frames: Frames) -> None:
    """A step sends the slices of its own model, and leaves the residuals of the other model as they
    are."""
    final: list[float] = []

    def main(worker: Worker) -> None:
        models = {name: torch.nn.Linear(8, 1, bias=False) for name in ("first", "second")}
        optimizers = {}
        for name, model in models.items():
            torch.nn.init.zeros_(model.weight)
            sgd = torch.optim.SGD(model.parameters(), lr=0.3)
            optimizers[name] = worker.attach(model, sgd, name=name)
        inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(2))
        while not worker.stopped:
            for number, name in enumerate(models, 1):
                wanted = inputs.mean(1, keepdim=True) * number
                loss = torch.nn.functional.mse_loss(models[name](inputs), wanted)
                loss.backward()
                optimizers[name].step(points=64)
        final.extend(float(model.weight.detach().mean()) * 8 for model in models.values())

    run_inline(job_of(workers=1, rounds=160), main, timeout_s=100)
    assert final == pytest.approx([1.0, 2.0], abs=0.05)
    left_out = [message for message, data in frames.sent if message.parts == ()]
    assert left_out and not any(message.quantised for message in left_out)


def test_lbfgs_reaches_the_minimum(frames: Frames) -> None:
    """A version never has exactly the parameters that the worker computed, so LBFGS begins a new
    history with every contribution."""
    final: list[torch.Tensor] = []
    wanted = torch.linspace(-2, 2, 300)

    def main(worker: Worker) -> None:
        weights = torch.nn.ParameterList([torch.zeros(300)])
        optimizer = worker.attach(weights, torch.optim.LBFGS(weights.parameters(), max_iter=4))

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = ((weights[0] - wanted).square() * torch.linspace(1, 9, 300)).mean()
            loss.backward()
            return loss

        while not worker.stopped:
            optimizer.step(closure, points=1)
        final.append(weights[0].detach().clone())

    run_inline(job_of(workers=1, rounds=40, kind="local"), main, timeout_s=60)
    torch.testing.assert_close(final[0], wanted, rtol=0, atol=0.01)
    assert all(message.quantised for message, _ in frames.sent)


def test_a_gradient_that_is_not_finite_is_left_out_and_the_residual_stays(frames: Frames) -> None:
    """The third step is left out. The numbers that the server decodes for all other steps, plus the
    residual of the last step, add up to the sum of the gradients of these steps."""
    made: list[torch.Tensor] = []

    def main(worker: Worker) -> None:
        model = torch.nn.Linear(300, 1, bias=False)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        random = torch.Generator().manual_seed(3)
        while not worker.stopped:
            gradient = torch.randn(1, 300, generator=random)
            if len(made) == 2:
                gradient[0, 7] = torch.inf
            made.append(gradient)
            model.weight.grad = gradient.clone()
            optimizer.step(points=1)

    run_inline(job_of(workers=1, rounds=6, on_nan="skip"), main, timeout_s=60)
    spec = ModelSpec(
        (TensorSpec("weight", (1, 300), "float32", 0, (300, 1)),),
        OptimizerSpec("SGD", ({"lr": 0.1},)),
    )
    (slice_,) = lay_out(spec, 1, 1 << 20).slices
    read = [read_quantised(slice_, memoryview(data), torch.float32) for _, data in frames.sent]
    counted = [gradient[0] for gradient in made if bool(gradient.isfinite().all())]
    sent = torch.stack(read).sum(0)[:300]
    assert len(read) == len(counted) >= 4
    torch.testing.assert_close(sent, torch.stack(counted).sum(0), rtol=0, atol=0.02)


def test_gradients_of_rows_are_sent_exactly(frames: Frames) -> None:
    def main(worker: Worker) -> None:
        model = torch.nn.Sequential(torch.nn.Embedding(64, 16, sparse=True), torch.nn.Linear(16, 4))
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        while not worker.stopped:
            model(torch.tensor([3, 40])).square().mean().backward()
            optimizer.step(points=2)

    run_inline(job_of(rounds=3), main, timeout_s=60)
    rows = [message for message, _ in frames.sent if message.indices is not None]
    assert rows and not any(message.quantised for message in rows)
    assert any(message.quantised for message, _ in frames.sent)


def test_links_within_a_host_carry_exact_pushes_and_a_message_says_so(
    capfd: pytest.CaptureFixture[str],
) -> None:
    states = []
    for push in ("exact", "int8"):
        found: dict[str, tj.State] = {}

        def main(worker: Worker, found: dict[str, tj.State] = found) -> None:
            model = tj.train(worker, "momentum")
            found[worker.name] = {name: t.clone() for name, t in model.state_dict().items()}

        run_inline(job_of(rounds=6, workers=1, servers=2, push=push), main, timeout_s=60)
        states.append(found["worker-0"])
        said = capfd.readouterr().err
        assert said.count("pushes to s0 and s1 stay exact") == (push == "int8")
    assert tj.distance(*states) == 0.0
