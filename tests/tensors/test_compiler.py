"""A process that makes optimizers loads torch's compiler only if something uses it, and then the
compiler works as in a process without polyrhythm."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from polyrhythm.core.kinds import ELEMENTWISE

PREPARE = """
from polyrhythm.tensors.compiler import prepare_optimizers
prepare_optimizers(steps=False)
"""


def run(program: str, *arguments: str) -> Any:
    """Run a program in a new process. Returns the object that its last line contains."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


TRAIN = """
import json, sys
import torch
from torch import nn
from polyrhythm.tensors.optimizers import check_optimizer, describe_optimizer

steps = []
for name in json.loads(sys.argv[1]):
    model = nn.Linear(3, 2)
    kind = getattr(torch.optim, name)
    optimizer = kind([{"params": [model.weight]}, {"params": [model.bias], "lr": 0.5}], lr=0.1)
    torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    model(torch.ones(1, 3)).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
    check_optimizer(describe_optimizer(optimizer))
    steps.append([name, "torch._dynamo" in sys.modules])
print(json.dumps(steps))
"""


def test_optimizers_do_not_load_the_compiler() -> None:
    """Neither those of workers, nor the steps of servers."""
    loaded = run(PREPARE + TRAIN, json.dumps(ELEMENTWISE))
    assert loaded == [[name, False] for name in ELEMENTWISE]


LOAD = """
import json, sys
from polyrhythm.tensors.compiler import prepare_optimizers
prepare_optimizers(steps=True)
print(json.dumps("torch._dynamo" in sys.modules))
"""


def test_a_process_that_makes_steps_loads_the_compiler_beforehand() -> None:
    assert run(LOAD) is True


COMPILE = """
import json, sys
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer.zero_grad()
found = {"before": "torch._dynamo" in sys.modules}
graphs = []

def backend(graph, inputs):
    graphs.append([node.name for node in graph.graph.nodes])
    return graph

def step(points):
    points = points * 2
    optimizer.zero_grad()
    loss = model(points).sum()
    loss.backward()
    optimizer.step()
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    return loss + len(state["param_groups"])

compiled = torch.compile(step, backend=backend)
found["losses"] = [compiled(torch.ones(1, 3)).item() for _ in range(3)]
found["graphs"] = graphs
found["groups"] = len(optimizer.param_groups)
whole = torch.compile(lambda: optimizer.zero_grad(), backend=backend, fullgraph=True)
try:
    whole()
    found["error"] = None
except Exception as error:
    found["error"] = [type(error).__name__, str(error).splitlines()[0]]
methods = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
functions = [getattr(torch.optim.Optimizer, name).__wrapped__ for name in methods]
found["marks"] = [str(vars(each).get("__dynamo_disable")).split(" at ")[0] for each in functions]
print(json.dumps(found))
"""


@pytest.mark.timeout(300)
def test_compiled_code_that_uses_an_optimizer_is_as_in_plain_torch() -> None:
    plain, prepared = run(COMPILE), run(PREPARE + COMPILE)
    assert (plain.pop("before"), prepared.pop("before")) == (True, False)
    assert plain["graphs"] and plain["error"] and plain["groups"] == 4
    assert prepared == plain
