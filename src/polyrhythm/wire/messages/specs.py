"""Values that messages are made of: addresses, models, routes, stamps and chunks."""

import msgspec

from polyrhythm.wire.messages.fields import Amount, Count, Label, Number, Option, Rate, Weight


class Address(msgspec.Struct, frozen=True, array_like=True):
    """Where a server listens. `identity` names its host, network namespace and user."""

    host: str
    port: int
    local: str
    identity: str


class TensorSpec(msgspec.Struct, frozen=True, array_like=True):
    """One tensor of the model. `group` is its parameter group, or -1 for a buffer."""

    name: Label
    shape: tuple[Amount, ...]
    dtype: Label
    group: Count
    strides: tuple[Amount, ...]


class OptimizerSpec(msgspec.Struct, frozen=True, array_like=True):
    """An optimizer by its name and one dict of options per parameter group, without pickle."""

    name: Label
    groups: tuple[dict[Label, Option], ...]


class StateName(msgspec.Struct, frozen=True, array_like=True):
    """A name in the model's `state_dict`, and the index of its tensor in the spec."""

    name: Label
    tensor: Amount


class ModelSpec(msgspec.Struct, frozen=True, array_like=True):
    tensors: tuple[TensorSpec, ...]
    optimizer: OptimizerSpec
    state: tuple[StateName, ...] = ()
    """The names under which tensors are saved. Tied weights have several names, buffers that are not
    persistent have none. Empty: every tensor is saved under its own name."""

    @property
    def saved(self) -> tuple[StateName, ...]:
        """The names under which tensors are saved."""
        if self.state:
            return self.state
        return tuple(StateName(tensor.name, i) for i, tensor in enumerate(self.tensors))


class Route(msgspec.Struct, frozen=True, array_like=True):
    """The servers that hold one slice. The primary and every replica have all acknowledged
    contributions. Learners are becoming replicas; an acknowledgement does not wait for them."""

    primary: Count
    replicas: tuple[Count, ...] = ()
    learners: tuple[Count, ...] = ()
    since: Count = 0
    """The routing epoch in which `primary` became the primary."""

    @property
    def holders(self) -> tuple[int, ...]:
        """The servers that have a copy of the slice, and those that are learning it."""
        return (self.primary, *self.replicas, *self.learners)


class ServerSpec(msgspec.Struct, frozen=True, array_like=True):
    """A server of the job and its address. The incarnation is the routing epoch in which it joined,
    so that a server that takes the place of a dead one is not mistaken for it."""

    server: Count
    address: Address
    incarnation: Count = 0


class Row(msgspec.Struct, frozen=True, array_like=True):
    """The last contribution of one worker that is folded into a slice."""

    worker: Count
    incarnation: Count
    sequence: Count


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """The state of a copy of a slice: the routing epoch in which the primary of its last step took
    the slice over, and the number of its steps. Equal stamps mean equal copies."""

    slice: Count
    primary_since: Count = 0
    number: Count = 0


class SliceStep(msgspec.Struct, frozen=True, array_like=True):
    """Everything but the tensors that decides what a fold does to a slice. The primary makes it
    once (`core/server/stepping.py`), applies it and forwards it, so every replica makes the same
    step."""

    weight: Weight
    """The weight of the aggregate, by which an optimizer divides it; 0 leaves the slice as it
    is."""
    rate: Rate = 0.0
    clock: Count = -1
    """The sequence of the contribution that the rate comes from."""
    scale: Number = 1.0
    """The fraction of a full step: 1/P if contributions are folded one by one; in rounds, the share
    of the workers that still train."""
    per_round: Count = 1
    """How many steps make a round. Momentum decays once per round, so each step takes this root of
    it."""

    def alike(self, other: "SliceStep") -> bool:
        """Whether one optimizer step can make both steps, given the same rates."""
        same = self.weight == other.weight and self.scale == other.scale
        return same and self.per_round == other.per_round


class ChunkProgress(msgspec.Struct, frozen=True, array_like=True):
    """The points of a chunk that were visited in its current pass, up to `cursor`. The progress
    counts when the contribution of its trailer does."""

    chunk: Count
    passes: Count
    cursor: Count


class ChunkLease(msgspec.Struct, frozen=True, array_like=True):
    """A leased chunk: the points [first, last) of the seeded permutation, and where to begin."""

    chunk: int
    first: int
    last: int
    passes: int
    cursor: int


class MemberSpec(msgspec.Struct, frozen=True, array_like=True):
    worker: Count
    incarnation: Count
    name: str


class FileEntry(msgspec.Struct, frozen=True, array_like=True):
    """A file of a checkpoint. The digest is that of its first bytes, which hold the digests of all
    others (`store/tensor_file.py`); a record has one digest of all its bytes."""

    name: Label
    nbytes: Amount
    digest: Label
    slices: tuple[Count, ...] = ()
