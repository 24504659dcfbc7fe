"""Messages about tensors: each names the tensor, the worker and the step, says whether the tensor
is a gradient, a parameter or a buffer, and gives advice that fits what happened."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

from polyrhythm import Worker
from polyrhythm.engines.inline import run_inline
from polyrhythm.errors import ModelChanged, NotFinite, PolyrhythmError, UsageError
from polyrhythm.wire.messages import JobSpec


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) * self.frozen


def parameter(net: Net, value: torch.Tensor) -> None:
    net.body[0].weight = nn.Parameter(value)


def set_data(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Net], None]:
    def change(net: Net) -> None:
        tensor = net.get_parameter(name) if name.endswith("weight") else net.get_buffer(name)
        tensor.data = make(tensor.data)

    return change


def spoil_gradient(net: Net) -> None:
    net.body[0].weight.grad[0, 0] = float("nan")


def spoil_buffer(net: Net) -> None:
    net.body[1].running_mean[0] = float("inf")


def drop(net: Net) -> None:
    del net.seen


CASES: dict[str, tuple[Callable[[Net], None], str, str]] = {
    "a gradient is not finite": (
        spoil_gradient,
        "the gradient of 'body.0.weight' holds NaN or infinity",
        "clip the gradients",
    ),
    "a buffer is not finite": (
        spoil_buffer,
        "the buffer 'body.1.running_mean' became NaN or infinite",
        "look at what writes to it in forward()",
    ),
    "a parameter is replaced": (
        lambda net: parameter(net, torch.ones(2, 2)),
        "the parameter 'body.0.weight' is not the tensor that was attached",
        "without assign=True",
    ),
    "a buffer is replaced": (
        lambda net: setattr(net, "seen", net.seen + 1),
        "the buffer 'seen' is not the tensor that was attached",
        "self.seen.copy_(new) or self.seen += 1",
    ),
    "a buffer is removed": (drop, "the buffer 'seen' is not in the model", "build the whole model"),
    "a parameter gets another shape": (
        lambda net: parameter(net, torch.ones(3, 2)),
        "the parameter 'body.0.weight' has shape [3, 2] now, and had [2, 2]",
        "give the model its final shape before attach()",
    ),
    "a buffer gets another shape": (
        lambda net: setattr(net, "seen", torch.zeros(5)),
        "the buffer 'seen' has shape [5] now, and had [3]",
        "give the buffer its largest size before attach()",
    ),
    "a parameter gets another dtype": (
        lambda net: parameter(net, torch.ones(2, 2, dtype=torch.float64)),
        "the parameter 'body.0.weight' has dtype torch.float64 now, and had torch.float32",
        "convert the model before attach()",
    ),
    "a model is converted": (
        lambda net: net.double() and None,
        "has dtype torch.float64 now, and had torch.float32",
        "convert the model before attach()",
    ),
    "a parameter moves": (
        lambda net: parameter(net, torch.ones(2, 2, device="meta")),
        "the parameter 'body.0.weight' is on the device meta now, and was on cpu",
        "leave the model on the device",
    ),
    "the data of a parameter is replaced": (
        set_data("body.0.weight", torch.clone),
        "the parameter 'body.0.weight' is not in the memory that attach() gave it",
        "with parameter.data.copy_()",
    ),
    "the data of a buffer is replaced": (
        set_data("seen", torch.clone),
        "the buffer 'seen' is not in the memory that attach() gave it",
        "with self.seen.copy_()",
    ),
    "the data of a buffer has another shape": (
        set_data("seen", lambda data: torch.zeros(4)),
        "the buffer 'seen' has shape [4] now, and had [3]",
        "write into a part of it",
    ),
    "a frozen parameter is trained": (
        lambda net: setattr(net.frozen, "requires_grad", True),
        "the parameter 'frozen' requires gradients now, and was frozen when",
        "attach the model before you freeze",
    ),
}


def run(change: Callable[[Net], None]) -> None:
    """Train with two workers. worker-1 changes its model in its third step."""

    def main(worker: Worker) -> None:
        net = Net()
        sgd = torch.optim.SGD(net.parameters(), lr=0.1)
        optimizer = worker.attach(net, sgd, buffers={"seen": "mean"})
        step = 0
        while not worker.stopped:
            step += 1
            net(torch.randn(4, 2)).sum().backward()
            if step == 3 and worker.name == "worker-1":
                change(net)
            optimizer.step(points=4)

    job = JobSpec(job="x", workers=2, servers=1, rounds=6, timer="off", heartbeat_s=20.0)
    run_inline(job, main, timeout_s=60)


@pytest.mark.parametrize("case", CASES)
def test_a_message_names_worker_step_and_tensor_and_gives_fitting_advice(case: str) -> None:
    change, found, advice = CASES[case]
    with pytest.raises(PolyrhythmError) as raised:
        run(change)
    text = str(raised.value)
    assert isinstance(raised.value, NotFinite if "not finite" in case else ModelChanged)
    assert text.startswith("worker-1, step 3: the "), text
    assert found in text
    assert advice in text
    assert "\n" not in text


def test_no_two_messages_are_equal_but_for_their_names() -> None:
    texts = {
        re.sub(r"'[\w.]+'|\[[\d, ]*\]", "", found) + advice for _, found, advice in CASES.values()
    }
    assert len(texts) == len(CASES)


def test_an_option_of_the_optimizer_that_changes_is_named() -> None:
    def main(worker: Worker) -> None:
        net = Net()
        groups = [{"params": [p], "momentum": 0.9} for p in net.parameters() if p.requires_grad]
        optimizer = worker.attach(net, torch.optim.SGD(groups, lr=0.1))
        while not worker.stopped:
            net(torch.randn(4, 2)).sum().backward()
            optimizer.param_groups[1]["momentum"] = 0.5
            optimizer.step(points=4)

    job = JobSpec(job="x", workers=1, servers=1, rounds=3)
    words = r"^worker-0, step 1: the optimizer's 'momentum' of parameter group 1 changed from 0.9"
    with pytest.raises(ModelChanged, match=words):
        run_inline(job, main, timeout_s=60)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda net: parameter(net, torch.ones(2, 2, dtype=torch.complex64)),
            "the parameter 'body.0.weight' has dtype torch.complex64, which cannot be exchanged",
        ),
        (lambda net: net.to("meta"), "'frozen' is on the device meta, so it has no values"),
        (
            lambda net: setattr(net, "seen", net.seen.to(torch.complex64)),
            "the buffer 'seen' has dtype torch.complex64, which cannot be exchanged: register"
            " torch.view_as_real(seen) instead, and use torch.view_as_complex() of it in forward();"
            " or keep a constant as an attribute that is no buffer",
        ),
        (
            lambda net: setattr(net, "seen", net.seen.to("meta")),
            "'frozen' is on the device cpu and 'seen' on meta, and a worker computes on one device",
        ),
    ],
)
def test_a_model_that_cannot_be_attached_is_refused_by_the_name_of_its_tensor(
    change: Callable[[Net], object], words: str
) -> None:
    def main(worker: Worker) -> None:
        net = Net()
        change(net)
        worker.attach(net, torch.optim.SGD(net.parameters(), lr=0.1))

    with pytest.raises(UsageError) as raised:
        run_inline(JobSpec(job="x", rounds=1), main, timeout_s=60)
    assert words in str(raised.value)
