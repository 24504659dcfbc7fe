"""Messages between a primary and its replicas and learners."""

from polyrhythm.wire.messages.fields import Amount, Label, Message
from polyrhythm.wire.messages.specs import Row, SliceStep, Stamp


class Copy(Message, frozen=True, kw_only=True):
    """One step of a slice, which the replica repeats. The payload is the folded aggregate, or
    without rounds the contribution; a step without weight has no payload."""

    stamp: Stamp
    step: SliceStep
    rows: tuple[Row, ...] = ()


class Copied(Message, frozen=True, kw_only=True):
    """A replica has made the steps in every slice that it copies from this primary."""

    rows: tuple[Row, ...] = ()


class Fetch(Message, frozen=True, kw_only=True):
    """Ask a primary for the slices that the sender must copy. `held`: the stamps of its copies so
    far."""

    held: tuple[Stamp, ...] = ()


class State(Message, frozen=True, kw_only=True):
    """One tensor of a slice's state, called `name`: the part number `part` of `parts`. With 0
    parts, the receiver's copy is the same already. `slices`: how many slices the answer has."""

    slices: Amount
    stamp: Stamp
    rows: tuple[Row, ...] = ()
    name: Label = ""
    dtype: Label = ""
    shape: tuple[Amount, ...] = ()
    part: Amount = 0
    parts: Amount = 0


class Adopted(Message, frozen=True, kw_only=True):
    """A replica or learner holds the slices that it fetched from this primary, with the
    contributions in `rows`."""

    rows: tuple[Row, ...] = ()
