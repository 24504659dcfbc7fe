"""Messages with which the lead's process collects the parameters of all slices, to save the
model."""

from polyrhythm.wire.messages.fields import Amount, Message


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
