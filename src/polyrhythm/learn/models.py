"""The models that the user's code attaches, and the moment at which the worker joins the job.

A worker joins with all of its models at once. *A model without a name is the only one, so the
worker joins when it is attached. With named models, the worker joins when training begins: at the
first step, batch, `keep` or `probe`.* Until then the models have the parameters of the user's code.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from polyrhythm.core.kinds import keeps_rows
from polyrhythm.core.model import file_of, is_model_name
from polyrhythm.core.placement.slices import BUFFERS, MEAN
from polyrhythm.core.sync.registry import check_several
from polyrhythm.core.worker.window import Window
from polyrhythm.errors import UsageError
from polyrhythm.learn.attached import AttachedOptimizer
from polyrhythm.learn.buffers import asked_for, quoted, sharing_of
from polyrhythm.learn.exchange import Exchange
from polyrhythm.learn.kept_objects import KeptObjects
from polyrhythm.learn.slowdowns import Pacer
from polyrhythm.observe.words import listed
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.store.model_file import load_into
from polyrhythm.tensors.dtypes import NAMES
from polyrhythm.tensors.kinds import KINDS
from polyrhythm.tensors.optimizers import SPARSE_ADAM, describe_optimizer, takes_rows
from polyrhythm.wire.messages import (
    JobSpec,
    ModelPart,
    ModelSpec,
    OptimizerSpec,
    Option,
    StateName,
    TensorSpec,
)


def describe(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    kind: str,
    *,
    rows: bool = True,
    buffers: Mapping[str, str] | None = None,
) -> tuple[ModelSpec, list[torch.Tensor]]:
    """Return the spec, and the tensors in the same order. Tied weights occur once. `rows`: whether
    servers accept gradients of single rows. `buffers`: see `Worker.attach`.

    The spec has names, shapes, dtypes, parameter groups and options of the optimizer, and no
    pickled object.
    """
    groups = {
        id(parameter): number
        for number, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
    }
    named: list[tuple[str, torch.Tensor, int]] = []
    for name, parameter in model.named_parameters():
        group = groups.pop(id(parameter), BUFFERS)
        named.append((name, parameter, group if parameter.requires_grad else BUFFERS))
    for name, buffer in model.named_buffers():
        named.append((name, buffer, BUFFERS))
    if groups:
        shapes = [
            list(parameter.shape)
            for group in optimizer.param_groups
            for parameter in group["params"]
            if id(parameter) in groups
        ]
        raise UsageError(
            f"the optimizer has {len(groups)} parameter(s) that are not in the model, the first of"
            f" shape {shapes[0]}: attach the model that holds them all, such as"
            " torch.nn.ModuleList([a, b])"
        )
    if not any(group != BUFFERS for _, _, group in named):
        raise UsageError(
            "the optimizer has no parameter of this model to train: all are frozen"
            " (requires_grad=False), or the optimizer has parameters of another model"
        )
    if not any(tensor.numel() for _, tensor, group in named if group != BUFFERS):
        raise UsageError(
            "all parameters of this model in the optimizer are empty (0 elements), so there is"
            " nothing to train: check the sizes of the layers"
        )
    if KINDS[kind].steps_on_servers and any(
        _has_stepped(state) for state in optimizer.state.values()
    ):
        raise UsageError(
            "the optimizer has state already, which would be lost, because the servers hold the"
            " optimizer's state: attach an optimizer that has made no step"
        )
    if not KINDS[kind].steps_on_servers:
        rates: list[dict[str, Option]] = [
            {"lr": float(group.get("lr", 0.0))} for group in optimizer.param_groups
        ]
        spec = OptimizerSpec(type(optimizer).__name__, tuple(rates))
    else:
        spec = describe_optimizer(optimizer)
    if not KINDS[kind].steps_on_servers:
        tables = tables_of(model, optimizer)
    else:
        tables = rows_of(model, optimizer, spec) if rows else set()
    untrained = {name: tensor for name, tensor, group in named if group == BUFFERS}
    shared = sharing_of(model, untrained, buffers)
    tensors = tuple(
        replace(
            _describe_tensor(name, tensor, group, rows=id(tensor) in tables),
            sharing=shared.get(name, MEAN),
        )
        for name, tensor, group in named
    )
    state = _state_names(model, [tensor for _, tensor, _ in named], tensors)
    return ModelSpec(tensors, spec, state), [tensor for _, tensor, _ in named]


def merge(models: Sequence[tuple[str, ModelSpec]]) -> ModelSpec:
    """Join the specs of several models to one spec. The name of each model is put before the names
    of its tensors."""
    tensors: list[TensorSpec] = []
    groups: list[dict[str, Option]] = []
    state: list[StateName] = []
    parts: list[ModelPart] = []
    for name, spec in models:
        first, group = len(tensors), len(groups)
        for tensor in spec.tensors:
            number = BUFFERS if tensor.group == BUFFERS else group + tensor.group
            tensors.append(replace(tensor, name=f"{name}.{tensor.name}", group=number))
        state += [StateName(f"{name}.{each.name}", first + each.tensor) for each in spec.saved]
        groups += spec.optimizer.groups
        counts = len(spec.tensors), len(spec.optimizer.groups)
        parts.append(ModelPart(name, spec.optimizer.name, *counts))
    optimizer = OptimizerSpec(" and ".join(part.optimizer for part in parts), tuple(groups))
    same = all(not spec.state for _, spec in models)
    return ModelSpec(tuple(tensors), optimizer, () if same else tuple(state), tuple(parts))


def _state_names(
    model: torch.nn.Module, tensors: list[torch.Tensor], specs: tuple[TensorSpec, ...]
) -> tuple[StateName, ...]:
    """The names in the model's `state_dict`, each with its tensor. Entries that are not parameters
    or buffers (the extra state of a module) are left out. The result is empty if these names are
    the same as in the spec."""
    index = {id(tensor): number for number, tensor in enumerate(tensors)}
    state = tuple(
        StateName(name, index[id(value)])
        for name, value in model.state_dict(keep_vars=True).items()
        if id(value) in index
    )
    own = {(spec.name, number) for number, spec in enumerate(specs)}
    return () if {(entry.name, entry.tensor) for entry in state} == own else state


def _has_stepped(state: dict[str, Any]) -> bool:
    """Whether the optimizer has made a step. State alone does not show it: Adagrad creates its
    state in its constructor, with a step count of zero."""
    return float(state.get("step", 1)) > 0


def rows_of(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, spec: OptimizerSpec
) -> set[int]:
    """The ids of the parameters whose gradients are contributed row by row: the tables of
    embeddings with `sparse=True`, and with SparseAdam all parameters."""
    tables = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse
    }
    return {
        id(parameter)
        for number, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
        if takes_rows(spec, number) and (spec.name == SPARSE_ADAM or id(parameter) in tables)
    }


def tables_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> set[int]:
    """The ids of the parameters whose changes are averaged row by row with kind local: the tables
    of all embeddings, and everything that SparseAdam trains."""
    if isinstance(optimizer, torch.optim.SparseAdam):
        return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag)
    }


def check_device(spec: ModelSpec, tensors: Sequence[torch.Tensor]) -> None:
    """Refuse models whose tensors are on several devices, or have no values."""
    first, device = spec.tensors[0].name, tensors[0].device
    for described, tensor in zip(spec.tensors, tensors, strict=True):
        if tensor.device != device:
            raise UsageError(
                f"{first!r} is on the device {device} and {described.name!r} on {tensor.device}, and"
                " a worker computes on one device: call model.to(device) before attach()"
            )
    if device.type == "meta":
        raise UsageError(
            f"{first!r} is on the device meta, so it has no values: call model.to_empty(device=...)"
            " and initialise the parameters before attach()"
        )


def _describe_tensor(name: str, tensor: torch.Tensor, group: int, *, rows: bool) -> TensorSpec:
    if tensor.dtype not in NAMES:
        what = "parameter" if isinstance(tensor, torch.nn.Parameter) else "buffer"
        advice = f"convert it to one of {', '.join(NAMES.values())}"
        if tensor.is_complex():
            advice = (
                f"register torch.view_as_real({name.rpartition('.')[2]}) instead, and use"
                " torch.view_as_complex() of it in forward()"
            )
            if what == "buffer":
                advice += "; or keep a constant as an attribute that is no buffer"
        raise UsageError(
            f"the {what} {name!r} has dtype {tensor.dtype}, which cannot be exchanged: {advice}"
        )
    dense = tensor.detach()
    if dense.numel() and not dense.is_contiguous() and (rows or not _is_permuted(dense)):
        dense = dense.contiguous()
    strides = tuple(dense.stride())
    return TensorSpec(name, tuple(tensor.shape), NAMES[tensor.dtype], group, strides, rows)


def _is_permuted(tensor: torch.Tensor) -> bool:
    """True if the elements fill their memory without gaps, in some order (channels_last)."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


@dataclass(frozen=True, slots=True)
class _Model:
    name: str
    module: torch.nn.Module
    optimizer: torch.optim.Optimizer
    attached: AttachedOptimizer
    buffers: Mapping[str, str] | None


class Models:
    """Implements `attached.Steps`."""

    def __init__(
        self,
        node: WorkerNode,
        job: JobSpec,
        kept: KeptObjects,
        pacer: Pacer | None,
        say: Callable[[str], None] = lambda message: None,
    ) -> None:
        """`say` prints a message once for all workers of a job."""
        self._node = node
        self._job = job
        self._kept = kept
        self._pacer = pacer
        self._say = say
        self._models: list[_Model] = []
        self.window = Window()
        self.exchange: Exchange | None = None
        """The exchange of the worker; None until the worker has joined the job with its models."""

    def attach(
        self,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        name: str,
        buffers: Mapping[str, str] | None,
    ) -> AttachedOptimizer:
        self._check(module, optimizer, name)
        attached = AttachedOptimizer(optimizer, module, self, len(self._models))
        self._models.append(_Model(name, module, optimizer, attached, buffers))
        if not name:
            self.join("attach")
        return attached

    def join(self, why: str) -> Exchange:
        """Join the job with the models, unless the worker has joined already. `why`: the method
        that needs the models."""
        if self.exchange is None:
            if not self._models:
                raise UsageError(f"call worker.attach() before worker.{why}()")
            if keeps_rows(self._job.kind):
                raise UsageError(
                    f"--kind {self._job.kind} runs point-wise algorithms: a job that attaches a model"
                    " needs --kind gradient or --kind local"
                )
            self.exchange = self._join()
        return self.exchange

    def _join(self) -> Exchange:
        job, models = self._job, self._models
        several = len(models) > 1
        if several:
            check_several(job)
            self.window = Window(several=True)
        if job.init:
            self._load(Path(job.init))
        described = [self._described(each) for each in models]
        spec, tensors = described[0]
        if several:
            names = [each.name for each in models]
            spec = merge([(name, each) for name, (each, _) in zip(names, described, strict=True)])
            tensors = [tensor for _, some in described for tensor in some]
        check_device(spec, tensors)
        flat = self._node.attach(spec, tensors)
        if exact := self._node.exact_to:
            self._say(
                f"--push {job.push}: pushes to {listed(exact)} stay exact, because processes of one host"
                " share memory; with --link tcp they are sent as int8 too"
            )
        self._say_averaged([spec for spec, _ in described])
        if self._pacer is not None:
            self._pacer.begin()
        attached = [each.attached for each in models]
        names = [each.name for each in models]
        exchange = Exchange(
            self._node, flat, self.window, attached, names, self._pacer, say=self._say
        )
        self._kept.attach([each.param_groups for each in attached])
        return exchange

    def _described(self, model: _Model) -> tuple[ModelSpec, list[torch.Tensor]]:
        try:
            rows = self._job.updater == "optimizer" and len(self._models) == 1
            kind, buffers = self._job.kind, model.buffers
            return describe(model.module, model.optimizer, kind, rows=rows, buffers=buffers)
        except UsageError as error:
            # The error does not name this worker, because the command prints the error once, with
            # the names of all workers that have raised it.
            which = f"the model {model.name!r}: " if model.name else ""
            raise UsageError(f"{which}{error}") from None

    def _say_averaged(self, specs: list[ModelSpec]) -> None:
        pairs = zip(self._models, specs, strict=True)
        averaged = [name for each, spec in pairs for name in asked_for(each.module, spec)]
        if averaged:
            self._say(f"averaged over the workers, as attach() says: {quoted(averaged)}")

    def _load(self, init: Path) -> None:
        """Load the parameters of `--init`, a model's file or the folder of a run."""
        several = len(self._models) > 1
        if several and not init.is_dir():
            files = " and ".join(file_of(each.name) for each in self._models)
            raise UsageError(
                f"--init {init} is one file, and the job has several models: give a folder with"
                f" {files}"
            )
        for each in self._models:
            file = init / file_of(each.name if several else "") if init.is_dir() else init
            load_into(each.module, file)

    # -- for the optimizers --------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        return self.exchange is not None and self.exchange.pending

    @property
    def steps_locally(self) -> bool:
        """Whether the user's optimizers make the steps, here on the worker."""
        return not KINDS[self._job.kind].steps_on_servers and not self._node.loop.stopped

    def before_step(self) -> None:
        self.join("step")
        self._kept.begin_step()

    def step(
        self,
        model: AttachedOptimizer,
        objective: torch.Tensor | float | None,
        points: float | None,
    ) -> None:
        self.join("step").step(model, objective, points)

    def end_schedules(self) -> None:
        """Finish the schedules of all models, because the job has ended (see `Schedules.finish`)."""
        for each in self._models:
            each.attached.schedules.finish()

    # -- what can be attached ------------------------------------------------------------------

    def _check(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer, name: str) -> None:
        for given, wanted in ((module, torch.nn.Module), (optimizer, torch.optim.Optimizer)):
            if not isinstance(given, wanted):
                raise UsageError(
                    f"attach() got {type(given).__name__!r} in place of a torch {wanted.__name__}:"
                    " call worker.attach(model, optimizer)"
                )
        if self.exchange is not None and self._models[0].name:
            raise UsageError(
                "attach() was called after training has begun: attach all models before the first"
                " step and before worker.batches(), worker.keep() and worker.probe()"
            )
        if self._models and (not name or not self._models[0].name):
            raise UsageError(
                "attach() was called twice: a worker trains one model, or several models that"
                " each have a name: worker.attach(critic, optimizer, name='critic')"
            )
        if name and not is_model_name(name):
            raise UsageError(
                f"attach() got the name {name!r}: it must be an identifier of ASCII letters, digits"
                " and underscores, and not 'best'"
            )
        for other in self._models:
            self._check_apart(module, optimizer, name, other)

    @staticmethod
    def _check_apart(
        module: torch.nn.Module, optimizer: torch.optim.Optimizer, name: str, other: _Model
    ) -> None:
        if name == other.name:
            raise UsageError(f"attach() has a model {name!r} already: give each model its own name")
        if optimizer is other.optimizer:
            raise UsageError(
                f"{other.name!r} and {name!r} have one optimizer: attach them as one model, such as"
                " torch.nn.ModuleList([a, b]), or give each its own optimizer"
            )
        theirs = {tensor.data_ptr(): key for key, tensor in _tensors(other.module)}
        for key, tensor in _tensors(module):
            if tensor.data_ptr() in theirs:
                shared = theirs[tensor.data_ptr()]
                raise UsageError(
                    f"{name!r} shares {key!r} with {other.name!r}, where it is {shared!r}: models"
                    " that share tensors must be attached as one, such as"
                    " torch.nn.ModuleList([a, b]) with one optimizer"
                )


def _tensors(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The parameters and buffers of a model, without empty ones."""
    named = (*module.named_parameters(), *module.named_buffers())
    return [(name, tensor) for name, tensor in named if tensor.numel()]
