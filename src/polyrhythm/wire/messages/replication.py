"""Messages between a primary and its replicas and learners."""

from polyrhythm.wire.messages.fields import Amount, Count, Label, Message
from polyrhythm.wire.messages.specs import Row, SliceStep, Stamp


class Copy(Message, frozen=True, kw_only=True):
    """A primary has made a step in a slice, and the replica must make the same step. The payload is
    the aggregate that was folded (without rounds: the contribution). A step with weight 0 has no
    payload."""

    stamp: Stamp
    step: SliceStep
    rows: tuple[Row, ...] = ()
    indices: Count | None = None
    """Without rounds: see `Contribution.indices`."""
    live: tuple[Row, ...] = ()
    """Kind statistics: the rows of the version (`Fold.rows`)."""
    differences: tuple[Row, ...] = ()
    """Kind statistics: the contributions that the payload contains, one after the other."""
    quantised: bool = False
    """Without rounds: see `Contribution.quantised`."""


class Copied(Message, frozen=True, kw_only=True):
    """A replica tells the primary which contributions (`rows`) are now in every slice that it
    copies from this primary."""

    rows: tuple[Row, ...] = ()


class Fetch(Message, frozen=True, kw_only=True):
    """A server asks a primary for the state of the slices that it must copy. `held`: the stamps of
    the copies that it has already."""

    held: tuple[Stamp, ...] = ()


class State(Message, frozen=True, kw_only=True):
    """A primary's answer to `Fetch`: one tensor of the state of one slice, called `name`. It is
    tensor number `part` of the `parts` tensors of this slice. With 0 `parts`, the receiver's copy
    equals the slice already. `slices`: how many slices the whole answer has."""

    slices: Amount
    stamp: Stamp
    rows: tuple[Row, ...] = ()
    name: Label = ""
    dtype: Label = ""
    shape: tuple[Amount, ...] = ()
    part: Amount = 0
    parts: Amount = 0


class Adopted(Message, frozen=True, kw_only=True):
    """A replica or learner now holds the slices that it fetched from this primary. These slices
    contain the contributions in `rows`."""

    rows: tuple[Row, ...] = ()
