"""What a user's code reports and evaluates: which names and values are accepted, when an evaluation
happens, and what is written to the user's own log."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from polyrhythm.core.metrics import MOST_NAMES
from polyrhythm.engines.inline import run_inline
from polyrhythm.errors import UsageError
from polyrhythm.learn.reporting import (
    EveryCalls,
    EveryTime,
    Writers,
    call_key,
    checked,
    number_of,
    schedule_of,
)
from polyrhythm.learn.worker import Worker
from polyrhythm.wire.messages import MOST_METRICS, JobSpec

DATA = (torch.zeros(64, 2), torch.zeros(64, 1))
SECOND_NS = 10**9


def job(**fields: Any) -> JobSpec:
    return JobSpec(**{"job": "x", "workers": 2, "servers": 1, **fields})


def loop(worker: Worker, each_step: Callable[[], None], *, batch: int = 4) -> None:
    model = nn.Linear(2, 1)
    optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for points, targets in worker.batches(DATA, batch_size=batch):
        nn.functional.mse_loss(model(points), targets).backward()
        optimizer.step()
        each_step()


def reports(run: Any) -> list[dict[str, Any]]:
    return [line for line in run.journal if line["what"] == "reported"]


# -- names and values --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        0.5,
        torch.tensor(0.5),
        torch.tensor([[0.5]], requires_grad=True),
        torch.tensor(0.5, dtype=torch.bfloat16),
        np.float32(0.5),
        np.array([0.5]),
    ],
)
def test_a_number_or_a_tensor_with_one_element_is_a_value(value: Any) -> None:
    assert number_of("f1", value, "worker.report") == 0.5


def test_whole_numbers_and_truth_values_are_numbers() -> None:
    assert [number_of("n", value, "c") for value in (3, True, np.int64(4), torch.tensor(5))] == [
        *(3.0, 1.0, 4.0, 5.0)
    ]
    assert number_of("n", 10**400, "c") == math.inf


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("0.5", "of type str"),
        (None, "of type NoneType"),
        ([0.5], "of type list"),
        (1 + 2j, "of type complex"),
        (torch.zeros(2), "a tensor of shape (2,)"),
        (torch.tensor(1j), "a tensor of shape ()"),
        (np.zeros(2), "of type ndarray"),
    ],
)
def test_what_is_no_number_is_refused_with_one_line(value: Any, words: str) -> None:
    with pytest.raises(UsageError) as error:
        number_of("f1", value, "worker.report")
    assert str(error.value) == (
        f"worker.report: the value of f1 is {words}: give a number, or a tensor with one element"
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a b", "'a b' is not the name of a metric: a name has letters"),
        ("a" * 65, "it has 65 characters"),
        ("objective", "the name 'objective' is taken by a column of the history"),
        ("round", "the name 'round' is taken"),
        (3, "3 is not the name of a metric"),
    ],
)
def test_a_faulty_name_is_refused_with_one_line(name: Any, words: str) -> None:
    with pytest.raises(UsageError, match=r"^[^\n]*$") as error:
        checked({name: 1.0}, "worker.evaluate", set())
    assert str(error.value).startswith("worker.evaluate: ") and words in str(error.value)


def test_the_number_of_values_is_limited() -> None:
    with pytest.raises(UsageError, match="got 101 values: it accepts at most 100"):
        checked({f"m{n}": 0.0 for n in range(MOST_METRICS + 1)}, "worker.report", set())
    known = {f"m{n}" for n in range(MOST_NAMES)}
    assert checked({"m0": 1.0}, "worker.report", known) == {"m0": 1.0}
    with pytest.raises(UsageError, match="do not put a step or a number into a name"):
        checked({"one_more": 1.0}, "worker.report", known)


def test_every_reported_value_reaches_the_journal() -> None:
    def main(worker: Worker) -> None:
        loop(worker, lambda: None)
        worker.report(f1=torch.tensor(0.5), **{"val/loss": 2})

    run = run_inline(job(epochs=1), main, timeout_s=60)
    assert [line["metrics"] for line in reports(run)] == [{"f1": 0.5, "val/loss": 2.0}] * 2
    assert not any(line["evaluated"] for line in reports(run))


def test_a_report_between_two_versions_belongs_to_no_round() -> None:
    """After local steps the model contains steps that no version has."""

    def main(worker: Worker) -> None:
        counts = itertools.count(1)
        loop(worker, lambda: worker.report(step=next(counts)))

    fields = {"kind": "local", "local_steps": 3, "rounds": 4, "workers": 1}
    found = reports(run_inline(job(**fields), main, timeout_s=60))
    steps = range(1, 13)
    assert [line["metrics"]["step"] for line in found] == [*steps]
    assert [line.get("round") for line in found] == [n // 3 if n % 3 == 0 else None for n in steps]


def test_a_worker_that_trains_on_while_a_version_is_on_its_way_has_none() -> None:
    def main(worker: Worker) -> None:
        loop(worker, lambda: worker.report(ended=worker.stopped))

    fields = {"sync": "psp", "kind": "local", "rounds": 5}
    found = reports(run_inline(job(**fields), main, timeout_s=60))
    assert found and all(("round" in line) == bool(line["metrics"]["ended"]) for line in found)


# -- when to evaluate --------------------------------------------------------------------------


def test_an_evaluation_can_happen_once_per_pass() -> None:
    """The model is evaluated after every pass, also after the last one, when the job has ended.
    Only one worker evaluates."""

    def main(worker: Worker) -> None:
        loop(worker, lambda: worker.evaluate(lambda: {"loss": 1.0, "f1": 0.5}, every="pass"))

    run = run_inline(job(epochs=3), main, timeout_s=60)
    found = reports(run)
    assert [line["metrics"] for line in found] == [{"loss": 1.0, "f1": 0.5}] * 3
    assert {line["name"] for line in found} == {"worker-0"}
    assert all(line["evaluated"] for line in found)


def test_one_batch_may_be_a_whole_pass() -> None:
    def main(worker: Worker) -> None:
        loop(worker, lambda: worker.evaluate(f1=lambda: 0.5, every="pass"), batch=64)

    run = run_inline(job(epochs=4, workers=1), main, timeout_s=60)
    assert len(reports(run)) == 4


def test_each_call_has_an_interval_of_its_own() -> None:
    """Each worker has 32 points, so a pass has 8 steps of 4 points."""

    def main(worker: Worker) -> None:
        def evaluate() -> None:
            worker.evaluate(a=lambda: 1.0, every=4)
            worker.evaluate(b=lambda: 2.0, every="pass")

        loop(worker, evaluate)

    run = run_inline(job(rounds=15), main, timeout_s=60)
    names = [name for line in reports(run) for name in line["metrics"]]
    assert (names.count("a"), names.count("b")) == (3, 1)


def test_schedules() -> None:
    calls = EveryCalls(3)
    assert [calls.due(0, 0) for _ in range(4)] == [False, False, True, True]
    calls.done(0, 0, 0)
    assert not calls.due(0, 0)
    time = EveryTime(0, 30 * SECOND_NS)
    assert not time.due(30 * SECOND_NS - 1, 0)
    assert time.due(30 * SECOND_NS, 0)
    time.done(30 * SECOND_NS, 31 * SECOND_NS, 0)
    assert not time.due(60 * SECOND_NS, 0)
    assert time.due(61 * SECOND_NS, 0)


@pytest.mark.parametrize("every", [0, -1, True, 1.5, "often", "10 parsecs", ""])
def test_an_interval_that_is_not_understood_is_refused(every: Any) -> None:
    with pytest.raises(
        UsageError, match="every=.* is not understood: give 'pass', a number of calls"
    ):
        schedule_of(every, 0, 0, decides=False)


def test_calls_are_told_apart_by_their_code() -> None:
    def keys(number: int) -> list[object]:
        return [
            call_key(None, lambda: {"a": number}, ()),
            call_key(None, lambda: {"b": number}, ()),
            call_key(None, functools.partial(print, number), ()),
            call_key("pass", None, ("a",)),
            call_key(None, None, ("a",)),
        ]

    assert keys(1) == keys(2), "a function that is made anew is the same call"
    assert len(set(keys(1))) == 5


def test_passes_must_be_counted_for_an_evaluation_per_pass() -> None:
    def main(worker: Worker) -> None:
        model = nn.Linear(2, 1)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        while not worker.stopped:
            model(DATA[0]).sum().backward()
            optimizer.step()
            worker.evaluate(f1=lambda: 1.0, every="pass")

    with pytest.raises(UsageError, match="counts the passes of worker.batches"):
        run_inline(job(workers=1, rounds=3), main, timeout_s=60)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda worker: worker.evaluate(), "give a function"),
        (lambda worker: worker.evaluate(f1=0.5), "f1 is a float and not a function"),
        (lambda worker: worker.evaluate(0.5), "the first argument is a float"),
        (lambda worker: worker.evaluate(lambda: 0.5, every=1), "returned a float: it must return"),
        (lambda worker: worker.evaluate(f1=lambda: {"a": 1}, every=1), "of f1 is of type dict"),
    ],
)
def test_a_faulty_evaluation_is_refused(call: Callable[[Worker], None], words: str) -> None:
    def main(worker: Worker) -> None:
        loop(worker, lambda: call(worker))

    with pytest.raises(UsageError, match=words):
        run_inline(job(workers=1, rounds=3), main, timeout_s=60)


# -- the user's own log ------------------------------------------------------------------------


class Scalars:
    """A writer with the interface of TensorBoard's `SummaryWriter`."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, float, int]] = []
        self.ended: list[str] = []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.lines.append((tag, scalar_value, global_step))

    def flush(self) -> None:
        self.ended.append("flush")

    def close(self) -> None:
        self.ended.append("close")


class Dicts:
    """A writer with the interface of a run of Weights & Biases."""

    def __init__(self) -> None:
        self.lines: list[tuple[dict[str, Any], int]] = []

    def log(self, data: dict[str, Any], *, step: int) -> None:
        self.lines.append((data, step))


def test_the_worker_that_evaluates_writes_to_the_log() -> None:
    scalars, dicts, made = Scalars(), Dicts(), []

    def make() -> Scalars:
        made.append(Scalars())
        return made[0]

    def main(worker: Worker) -> None:
        for writer in (scalars, dicts, make):
            worker.log_to(writer)
        loop(worker, lambda: worker.evaluate(f1=lambda: 0.5, every="pass"))
        worker.report(loss=1.0)

    run_inline(job(epochs=2), main, timeout_s=60)
    steps = [step for _, _, step in scalars.lines]
    assert scalars.lines == [
        *(("f1", 0.5, steps[0]), ("f1", 0.5, steps[1]), ("loss", 1.0, steps[2]))
    ]
    assert 0 < steps[0] < steps[1] <= steps[2]
    assert [data for data, _ in dicts.lines] == [{"f1": 0.5}, {"f1": 0.5}, {"loss": 1.0}]
    assert [writer.lines for writer in made] == [scalars.lines], "one worker makes one writer"
    assert (scalars.ended, made[0].ended) == (["flush"], ["flush", "close"])


def test_a_writer_that_fails_is_reported_once_and_ends_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    class Failing:
        def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
            raise OSError("the disk is full\nand more")

        def flush(self) -> None:
            raise OSError("the disk is still full")

    def unmade() -> Scalars:
        raise ImportError("there is no tensorboard")

    writers, good = Writers("worker-0"), Scalars()
    for writer in (Failing(), unmade, good):
        writers.add(writer)
    for step in range(3):
        writers.write({"f1": 0.5}, step)
    writers.close()
    assert len(good.lines) == 3
    assert capfd.readouterr().err.splitlines() == [
        "polyrhythm: worker-0 could not write metrics with unmade: ImportError: there is no"
        " tensorboard; training goes on",
        "polyrhythm: worker-0 could not write metrics with Failing: OSError: the disk is full;"
        " training goes on",
    ]


def test_what_cannot_write_is_refused() -> None:
    with pytest.raises(UsageError, match="int has neither add_scalar"):
        Writers("worker-0").add(3)  # type: ignore[arg-type]


def test_a_class_of_writers_makes_a_writer() -> None:
    lines: list[tuple[str, float, int]] = []

    class Writer:
        def add_scalar(self, tag: str, scalar_value: float, global_step: int, /) -> None:
            lines.append((tag, scalar_value, global_step))

    writers = Writers("worker-0")
    writers.add(Writer)
    writers.write({"f1": 0.5}, 3)
    assert lines == [("f1", 0.5, 3)]
