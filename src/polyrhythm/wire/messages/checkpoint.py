"""The messages of a cut (the state of all slices at one moment, which becomes a checkpoint). Also
the messages about the state that the user's code adds to checkpoints with `worker.keep`, and about
collecting the parameters of all slices to save the model."""

from polyrhythm.wire.messages.fields import Amount, Label, Message
from polyrhythm.wire.messages.specs import FileEntry


class Cut(Message, frozen=True, kw_only=True):
    """The lead orders a server to copy the present state of the slices whose primary it is. The
    server then writes the copy to the store, as its part of checkpoint `number`. With rounds, the
    slices are those of version `round`."""

    number: Amount


class CutTaken(Message, frozen=True, kw_only=True):
    """A server has copied its slices. `torn`: how many contributions were folded into some of its
    slices but not into all of them when the copy was made."""

    number: Amount
    torn: Amount = 0


class CutWritten(Message, frozen=True, kw_only=True):
    """A server has written its part of the checkpoint to `file`, or could not because of
    `fault`."""

    number: Amount
    file: FileEntry | None = None
    fault: Label = ""


class Withhold(Message, frozen=True, kw_only=True):
    """Without rounds: the lead asks a worker to send no contribution until it gets `Proceed`,
    because cut `number` is about to be taken. The worker may go on computing."""

    number: Amount


class Withheld(Message, frozen=True, kw_only=True):
    """The worker's answer to `Withhold`: contribution `sequence` is its last one until it gets
    `Proceed`."""

    number: Amount


class Proceed(Message, frozen=True, kw_only=True):
    """Cut `number` is taken or given up: the worker may send contributions again."""

    number: Amount


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


class Collect(Message, frozen=True, kw_only=True):
    """The lead asks a primary for the parameters of these slices. With `copied`, the primary sends
    the copies that it made at `Capture`. Without it, the job has ended: the primary sends the
    slices themselves, and without rounds it folds nothing after this message."""

    number: Amount = 0
    """The number of the model file for which the parameters are collected."""
    slices: tuple[Amount, ...] = ()
    copied: bool = False


class Capture(Message, frozen=True, kw_only=True):
    """The lead orders every primary to copy the parameters of its slices, for the model file
    `number`. The lead collects the copies later (`Collect`), while training goes on."""

    number: Amount = 0


class Collected(Message, frozen=True, kw_only=True):
    """The parameters of one slice. The payload is the slice in the dtype of the model."""

    number: Amount = 0
