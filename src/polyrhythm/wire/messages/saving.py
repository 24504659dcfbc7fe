"""Messages with which the lead's process collects the parameters of all slices, to save the model."""

from polyrhythm.wire.messages.fields import Amount, Message


class Collect(Message, frozen=True, kw_only=True):
    """The lead asks a primary for the parameters of these slices. Unless they were copied, the job has
    ended: a server that folds on arrival folds nothing after this."""

    number: Amount = 0
    """The number of the file that they are for."""
    slices: tuple[Amount, ...] = ()
    copied: bool = False
    """Send the copies that were made for this file."""


class Capture(Message, frozen=True, kw_only=True):
    """The lead orders every primary to copy the parameters of its slices, for the file `number`. It
    collects the copies while training goes on."""

    number: Amount = 0


class Collected(Message, frozen=True, kw_only=True):
    """The parameters of one slice. The payload is the slice in the dtype of the model."""

    number: Amount = 0
