"""Messages about the state that the user's code adds to checkpoints with `worker.keep`."""

from polyrhythm.wire.messages.fields import Amount, Label, Message


class Keeping(Message, frozen=True, kw_only=True):
    """A worker has a state to keep. `restore`: it waits for the state in the checkpoint from which
    the job resumes."""

    restore: bool = False


class Keep(Message, frozen=True, kw_only=True):
    """The lead asks a worker for the state that belongs to cut `number`."""

    number: Amount = 0


class Kept(Message, frozen=True, kw_only=True):
    """A part of the state that belongs to cut `number`: the payload contains `part` bytes, which
    begin at `offset`. The whole state has `nbytes` bytes. `fault`: why there is no state."""

    number: Amount = 0
    nbytes: Amount = 0
    offset: Amount = 0
    part: Amount = 0
    fault: Label = ""


class Restored(Message, frozen=True, kw_only=True):
    """A part of the state in the checkpoint from which the job resumes: the payload contains the
    bytes from `offset` on. The whole state has `nbytes` bytes; 0: the checkpoint has none.
    `fault`: why it cannot be read."""

    nbytes: Amount = 0
    offset: Amount = 0
    fault: Label = ""
