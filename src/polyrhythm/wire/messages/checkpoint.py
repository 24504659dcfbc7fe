"""Messages of a cut: the state of all slices at one moment, which becomes a checkpoint."""

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
