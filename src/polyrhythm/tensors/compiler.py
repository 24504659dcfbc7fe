"""Keeps torch's compiler (`torch._dynamo`, about 800 modules) from being loaded by processes that
do not use it.

Torch marks some methods of its optimizers as not to be compiled. For this mark it loads the
compiler when the first of them is called, so the first optimizer of a process costs as much
processor time as `import torch` (2 s). *In a process without a compiler, a mark has no effect.* So
this module omits the marks until something loads the compiler, for example `torch.compile`. Then
torch sets its marks as usual.
"""

import importlib
import inspect
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from typing import Any

import torch

COMPILER = "torch._dynamo"
_MARKED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
_MARK = "__dynamo_disable"
"""The attribute in which torch keeps the function that it calls in place of a marked one. If a
version of torch has another attribute, that version loads its compiler as usual."""


def prepare_optimizers(*, steps: bool) -> None:
    """Prepare this process for its first optimizer. `steps`: the process calls `step` of torch's
    optimizers, which needs the compiler. It is then loaded now, because no heartbeat is sent while
    it is loaded."""
    if steps:
        importlib.import_module(COMPILER)
    elif COMPILER not in sys.modules and not any(
        isinstance(each, _Watch) for each in sys.meta_path
    ):
        sys.meta_path.insert(0, _Watch())
        for function in _marked():
            setattr(function, _MARK, function)


def _marked() -> list[Callable[..., Any]]:
    return [inspect.unwrap(getattr(torch.optim.Optimizer, name)) for name in _MARKED]


class _Watch(MetaPathFinder):
    """Python asks this finder for every module that is not loaded yet. The finder finds none."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == COMPILER:
            for function in _marked():
                if getattr(function, _MARK, None) is function:
                    delattr(function, _MARK)
