"""Messages with which the lead's process collects the parameters of all slices, to save the model."""

from polyrhythm.wire.messages.fields import Amount, Message


class Collect(Message, frozen=True, kw_only=True):
    """The lead asks a primary for the parameters of these slices. The job has ended: a server that
    folds on arrival folds nothing after this."""

    number: Amount = 0
    """The number of the file that they are for."""
    slices: tuple[Amount, ...] = ()


class Collected(Message, frozen=True, kw_only=True):
    """The parameters of one slice. The payload is the slice in the dtype of the model."""

    number: Amount = 0
