"""Several models with optimizers of their own in one job."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from polyrhythm import Worker
from polyrhythm.engines.inline import InlineRun, run_inline
from polyrhythm.errors import PolyrhythmError
from polyrhythm.wire.messages import JobSpec
from tests.learn import gan_job as gan
from tests.learn.exchanges import Exchanges, record_exchanges

POLICIES = ["bsp", "asp", "ssp:4", "ssp-restart:3", "psp", "fsp"]


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> Iterator[Exchanges]:
    with monkeypatch.context() as patch:
        yield record_exchanges(patch)


def run(
    order: tuple[str, ...] = ("critic", "generator"), **job: Any
) -> tuple[InlineRun, dict[str, Any]]:
    """Train the GAN inline. Returns the run and the final models of every worker, with the batches
    that the worker trained with."""
    found: dict[str, Any] = {}

    def main(worker: Worker) -> None:
        models = gan.make_models()
        optimizers = gan.attach(worker, models)
        batches: list[torch.Tensor] = []

        def noted() -> Iterator[Any]:
            for batch in worker.batches((gan.data(),), batch_size=4):
                batches.append(batch[0].clone())
                yield batch

        gan.train(models, optimizers, noted(), order)
        found[worker.name] = gan.states(models), batches

    fields = {"workers": 1, "servers": 2, "heartbeat_s": 20.0, "slice_nbytes": 256, **job}
    return run_inline(JobSpec(job="gan", **fields), main, timeout_s=60), found


@pytest.mark.parametrize("order", [("critic", "generator"), ("generator", "critic", "critic")])
@pytest.mark.parametrize("sync", ["bsp", "asp", "ssp:4"])
def test_one_worker_equals_training_without_polyrhythm(sync: str, order: tuple[str, ...]) -> None:
    _, found = run(order, sync=sync, epochs=2)
    state, batches = found["worker-0"]
    assert sum(len(batch) for batch in batches) == 2 * gan.POINTS
    models = gan.make_models()
    gan.train(models, gan.make_optimizers(models), ((batch,) for batch in batches), order)
    assert gan.distance(state, gan.states(models)) < 1e-5


def points_of(run: InlineRun) -> int:
    """The points that the journal counts."""
    return sum(line["points"] for line in run.journal if line["what"] == "rounds")


@pytest.mark.parametrize("sync", POLICIES)
def test_all_workers_end_with_the_parameters_of_the_servers(sync: str) -> None:
    run_, found = run(sync=sync, kind=KINDS.get(sync, "gradient"), workers=2, epochs=3, timer="off")
    assert len(found) == 2
    states = [state for state, _ in found.values()]
    assert gan.distance(states[0], states[1]) == 0.0
    before = gan.states(gan.make_models())
    for name in before:
        assert any(not torch.equal(states[0][name][key], before[name][key]) for key in before[name])
    assert points_of(run_) == 3 * gan.POINTS


KINDS = {"psp": "local", "fsp": "local"}


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_a_step_contributes_only_the_slices_of_its_own_model(
    sync: str, exchanges: Exchanges
) -> None:
    """The points of a batch are the weight of every step that is made with it."""
    sent: list[Any] = []
    sizes: list[int] = []

    def main(worker: Worker) -> None:
        models = gan.make_models()
        optimizers = gan.attach(worker, models)
        for batch in worker.batches((gan.data(),), batch_size=4):
            sizes.append(len(batch[0]))
            gan.train(models, optimizers, [batch], ("critic", "critic", "generator"))
        sent.extend(exchanges.of(worker))

    job = JobSpec(job="gan", workers=1, servers=2, sync=sync, epochs=1, slice_nbytes=256)
    run_inline(job, main, timeout_s=60)
    assert sum(sizes) == gan.POINTS
    assert [each.trailer.report.model for each in sent] == [0, 0, 1] * len(sizes)
    assert [each.trailer.report.weight for each in sent] == [
        size for size in sizes for _ in range(3)
    ]
    slices = {
        model: {s for e in sent if e.trailer.report.model == model for s in e.slices}
        for model in (0, 1)
    }
    buffers = slices[0] & slices[1]
    of_critic, of_generator = slices[0] - buffers, slices[1] - buffers
    assert of_critic and of_generator
    lengths = {s: len(each.slices[s]) for each in sent for s in each.slices}
    padded = sum(lengths[s] for s in of_critic), sum(lengths[s] for s in of_generator)
    assert padded == (8 * 2 + 16 + 16 + 16, 16 + 16 + 16 + 16 + 16 + 16), (
        "rounded up to 16 elements"
    )


def test_the_last_batch_has_all_its_steps() -> None:
    for sync in ("bsp", "asp"):
        run_, found = run(("critic", "critic", "generator"), sync=sync, epochs=1)
        counted = sum(line["contributions"] for line in run_.journal if line["what"] == "rounds")
        assert counted == 3 * len(found["worker-0"][1])


def test_a_worker_with_another_order_is_refused() -> None:
    """worker-1 makes the steps of the generator first."""

    def main(worker: Worker) -> None:
        models = gan.make_models()
        order = ("critic", "generator") if worker.name == "worker-0" else ("generator", "critic")
        batches = worker.batches((gan.data(),), batch_size=4)
        gan.train(models, gan.attach(worker, models), batches, order)

    job = JobSpec(job="gan", workers=2, sync="bsp", rounds=20, heartbeat_s=20.0)
    seen, expected = "critic", "generator"
    with pytest.raises(PolyrhythmError) as caught:
        run_inline(job, main, timeout_s=60)
    said = str(caught.value)
    assert re.search(r"the steps of worker-\d were (critic|generator), but", said), said
    assert re.search(r"the order of all workers is (critic|generator)", said), said
    assert seen in said and expected in said and "--kind local" in said


def test_a_worker_that_changes_its_own_order_is_refused() -> None:
    def main(worker: Worker) -> None:
        models = gan.make_models()
        optimizers = gan.attach(worker, models)
        batches = worker.batches((gan.data(),), batch_size=4)
        for number, (real,) in enumerate(batches):
            order = ("critic", "critic", "generator") if number < 2 else ("critic", "generator")
            gan.train(models, optimizers, [(real,)], order)

    with pytest.raises(PolyrhythmError, match="were critic, generator, but the order of its first"):
        run_inline(JobSpec(job="gan", workers=1, rounds=20), main, timeout_s=60)


@pytest.mark.parametrize(
    ("job", "says"),
    [
        ({"sync": "fsp", "kind": "gradient"}, "many steps: use --kind local"),
        ({"sync": "bspb", "kind": "gradient"}, "many steps: choose another policy"),
    ],
)
def test_a_policy_whose_contributions_have_many_steps_needs_kind_local(
    job: dict[str, str], says: str
) -> None:
    with pytest.raises(PolyrhythmError, match=says):
        run(epochs=1, **job)


def test_local_steps_are_contributed_together(exchanges: Exchanges) -> None:
    sent: list[Any] = []
    sizes: list[int] = []

    def main(worker: Worker) -> None:
        models = gan.make_models()
        optimizers = gan.attach(worker, models)
        for batch in worker.batches((gan.data(),), batch_size=4):
            sizes.append(len(batch[0]))
            gan.train(models, optimizers, [batch], ("critic", "generator", "critic"))
        sent.extend(exchanges.of(worker))

    job = JobSpec(job="gan", workers=1, kind="local", local_steps=6, epochs=1)
    run_inline(job, main, timeout_s=60)
    assert [each.trailer.report.weight for each in sent] == [
        sum(sizes[i : i + 2]) for i in range(0, len(sizes), 2)
    ]
    assert {each.trailer.report.model for each in sent} == {-1}
    assert sum(each.trailer.report.steps for each in sent) == 3 * len(sizes)


def attach_badly(attach: Any) -> str:
    """The message with which attach() refuses."""
    with pytest.raises(PolyrhythmError) as caught:
        run_inline(JobSpec(job="gan", workers=1, rounds=1), attach, timeout_s=60)
    return str(caught.value)


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_models_that_cannot_be_attached_together_are_refused() -> None:
    one, two = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    tied = torch.nn.Linear(2, 2)
    tied.weight = one.weight
    both = torch.optim.SGD([*one.parameters(), *two.parameters()], lr=0.1)

    def shares(worker: Worker) -> None:
        worker.attach(one, sgd(one), name="one")
        worker.attach(tied, sgd(tied), name="tied")

    def one_optimizer(worker: Worker) -> None:
        worker.attach(one, both, name="one")
        worker.attach(two, both, name="two")

    def same_name(worker: Worker) -> None:
        worker.attach(one, sgd(one), name="one")
        worker.attach(two, sgd(two), name="one")

    def no_name(worker: Worker) -> None:
        worker.attach(one, sgd(one), name="one")
        worker.attach(two, sgd(two))

    assert "'tied' shares 'weight' with 'one'" in attach_badly(shares)
    assert "ModuleList" in attach_badly(one_optimizer)
    assert "already" in attach_badly(same_name)
    assert "each have a name" in attach_badly(no_name)
    assert "'best'" in attach_badly(lambda worker: worker.attach(one, sgd(one), name="best"))
    assert "ModuleList" in attach_badly(lambda worker: worker.attach(one, both))


def test_points_given_with_the_steps_count_once() -> None:
    def main(worker: Worker) -> None:
        models = gan.make_models()
        optimizers = gan.attach(worker, models)
        while not worker.stopped:
            for name in ("critic", "generator"):
                gan.LOSSES[name](models, gan.data()[:8]).backward()
                optimizers[name].step(points=8)

    job = JobSpec(job="gan", workers=1, rounds=10)
    assert points_of(run_inline(job, main, timeout_s=60)) == 5 * 8


def test_a_model_that_makes_no_steps_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyrhythm.core.step_order.MOST_STEPS", 100)

    def main(worker: Worker) -> None:
        models = gan.make_models()
        optimizers = gan.attach(worker, models)
        while not worker.stopped:
            optimizers["critic"].step(points=1)

    job = JobSpec(job="gan", workers=1, servers=1, rounds=200, heartbeat_s=20.0)
    words = "the first 101 steps of worker-0 have no repeating order, and none is a step of gen"
    with pytest.raises(PolyrhythmError, match=words):
        run_inline(job, main, timeout_s=60)
