"""Values that messages are made of: addresses, models, routes, stamps and chunks."""

import msgspec

from polyrhythm.wire.messages.fields import Amount, Count, Label, Number, Option, Rate, Weight


class Address(msgspec.Struct, frozen=True, array_like=True):
    """Where a server listens: over TCP at `host` and `port`, and for processes on its own host at
    the Unix socket `local`. `identity` names its host, network namespace and user."""

    host: str
    port: int
    local: str
    identity: str


class TensorSpec(msgspec.Struct, frozen=True, array_like=True):
    """One tensor of the model. `group` is its parameter group, or -1 for a buffer. `rows`: its
    gradients contain only some of its rows, as with `nn.Embedding(sparse=True)`. `sharing`: what
    workers get of each other's values of a buffer (`core/placement/slices.py`)."""

    name: Label
    shape: tuple[Amount, ...]
    dtype: Label
    group: Count
    strides: tuple[Amount, ...]
    rows: bool = False
    sharing: Label = "mean"


class OptimizerSpec(msgspec.Struct, frozen=True, array_like=True):
    """An optimizer: its name, and the options of each parameter group. It is sent without
    pickle."""

    name: Label
    groups: tuple[dict[Label, Option], ...]


class StateName(msgspec.Struct, frozen=True, array_like=True):
    """A name in the model's `state_dict`, and the index of its tensor in the spec."""

    name: Label
    tensor: Amount


class ModelPart(msgspec.Struct, frozen=True, array_like=True):
    """One of the models of a job that trains several. The names of its tensors in the spec begin
    with `name` and a dot. The tensors and parameter groups of a model follow those of the model
    before it."""

    name: Label
    optimizer: Label
    """The name of its optimizer."""
    tensors: Amount
    groups: Amount


class Division(msgspec.Struct, frozen=True, array_like=True):
    """How a model is cut into slices (`core/placement/slices.py`)."""

    servers: Amount
    """There are at least as many slices as servers."""
    slice_nbytes: Amount
    """The greatest size of a slice."""
    probes: Amount = 0
    """How many slices are probe slices (`core/placement/assignment.py`)."""


class ModelSpec(msgspec.Struct, frozen=True, array_like=True):
    tensors: tuple[TensorSpec, ...]
    optimizer: OptimizerSpec
    """The optimizer, with all parameter groups. If there are several models, `parts` has the name
    of the optimizer of each model."""
    state: tuple[StateName, ...] = ()
    """The names under which tensors are saved. Tied weights have several names, buffers that are
    not persistent have none. Empty: every tensor is saved under its own name."""
    parts: tuple[ModelPart, ...] = ()
    """The models, if there are several."""
    division: Division | None = None
    """How the model is cut into slices. The lead decides it, once (`core/placement/division.py`)."""

    @property
    def saved(self) -> tuple[StateName, ...]:
        """The names under which tensors are saved."""
        if self.state:
            return self.state
        return tuple(StateName(tensor.name, i) for i, tensor in enumerate(self.tensors))

    @property
    def optimizers(self) -> tuple[OptimizerSpec, ...]:
        """The optimizer of each model, with its own parameter groups."""
        if not self.parts:
            return (self.optimizer,)
        found, first = [], 0
        for part in self.parts:
            groups = self.optimizer.groups[first : first + part.groups]
            found.append(OptimizerSpec(part.optimizer, groups))
            first += part.groups
        return tuple(found)

    @property
    def models(self) -> tuple[int, ...]:
        """The number of the model to which each parameter group belongs."""
        if not self.parts:
            return (0,) * len(self.optimizer.groups)
        return tuple(number for number, part in enumerate(self.parts) for _ in range(part.groups))


class Route(msgspec.Struct, frozen=True, array_like=True):
    """The servers that hold one slice. The primary and every replica have all acknowledged
    contributions. Learners still fetch the slice; no acknowledgement waits for them."""

    primary: Count
    replicas: tuple[Count, ...] = ()
    learners: tuple[Count, ...] = ()
    since: Count = 0
    """The routing epoch in which `primary` became the primary."""

    @property
    def holders(self) -> tuple[int, ...]:
        """The primary, the replicas and the learners."""
        return (self.primary, *self.replicas, *self.learners)


class ServerSpec(msgspec.Struct, frozen=True, array_like=True):
    """A server of the job and its address. The incarnation is the routing epoch in which the server
    joined: it differs between a dead server and the server that gets the same number later."""

    server: Count
    address: Address
    incarnation: Count = 0


class Row(msgspec.Struct, frozen=True, array_like=True):
    """The last contribution of one worker that is folded into a slice."""

    worker: Count
    incarnation: Count
    sequence: Count


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """Identifies the state of one copy of a slice. Equal stamps mean equal copies. `number`: how
    many steps the copy has made. `primary_since`: the routing epoch in which the server that made
    the last of these steps became the primary."""

    slice: Count
    primary_since: Count = 0
    number: Count = 0


class SliceStep(msgspec.Struct, frozen=True, array_like=True):
    """The numbers which, together with the tensors, determine what a fold does to a slice. The
    primary computes them once (`core/server/stepping.py`), applies them and sends them to the
    replicas, so that every replica makes the same step."""

    weight: Weight
    """The weight of the aggregate. An optimizer divides the aggregate by it. If it is 0, the slice
    does not change."""
    rate: Rate = 0.0
    clock: Count = -1
    """The sequence number of the contribution that supplied the learning rate."""
    scale: Number = 1.0
    """The fraction of a full step: of the round, or of one contribution if there are no rounds
    (`core/server/stepping.py`)."""
    per_round: Number = 1.0
    """How many steps like this one count as one round (n). Momentum decays once per round, so each
    step multiplies it by the n-th root of the momentum factor."""

    def alike(self, other: "SliceStep") -> bool:
        """Whether one call of the optimizer can make this step and `other`, if their rates are
        equal too."""
        same = self.weight == other.weight and self.scale == other.scale
        return same and self.per_round == other.per_round


class Progress(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The progress of the job, as the lead reports it to workers."""

    points: Amount = 0
    """How many points of all workers have counted, since the job first began."""
    data_set: Amount = 0
    """The number of points in the data set; 0 if passes are not counted."""
    share: Number = 0.0
    """The progress of the job towards its goal, from 0 to 1."""
    steps: Weight = 0.0
    """How many steps the job has made, since it first began (`core/worker/job_steps.py`)."""


class ChunkProgress(msgspec.Struct, frozen=True, array_like=True):
    """A worker's progress in a chunk: it has visited all points before `cursor` in the current
    pass, after `passes` whole passes. The lead counts this progress only together with the
    contribution that reports it."""

    chunk: Count
    passes: Count
    cursor: Count


class ChunkLease(msgspec.Struct, frozen=True, array_like=True):
    """A leased chunk: the points [first, last) of the seeded permutation of the data. The worker
    begins at `cursor`, after `passes` whole passes."""

    chunk: int
    first: int
    last: int
    passes: int
    cursor: int


class ChunkSend(msgspec.Struct, frozen=True, array_like=True):
    """A chunk whose points [first, last) a worker sends to another worker. `number`: the number of
    the delivery."""

    number: Amount
    chunk: Amount
    first: Amount
    last: Amount
    worker: Count
    incarnation: Count
    name: Label
    """The name of the other worker."""
    address: Address


class ColumnSpec(msgspec.Struct, frozen=True, array_like=True):
    """One value of every point in a `ChunkPart`. `kind`: `tensor`, `array`, `int`, `float`, `bool`,
    or `str`, whose bytes are UTF-8 and padded with zeros."""

    kind: Label
    dtype: Label
    shape: tuple[Amount, ...]


class MemberSpec(msgspec.Struct, frozen=True, array_like=True):
    worker: Count
    incarnation: Count
    name: str


class FileEntry(msgspec.Struct, frozen=True, array_like=True):
    """A file of a checkpoint. `digest`: for a tensor file, the digest of its first bytes, which
    contain the digests of all other bytes (`store/tensor_file.py`); for a record, the digest of the
    whole file."""

    name: Label
    nbytes: Amount
    digest: Label
    slices: tuple[Count, ...] = ()
