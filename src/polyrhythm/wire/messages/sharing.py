"""The messages of jobs with `--optimizer-on workers`, in which workers hold the parameters and the
state of the optimizer: how these come to the servers, and from there to workers that join."""

from polyrhythm.wire.messages.fields import Amount, Label, Message


class Share(Message, frozen=True, kw_only=True):
    """The lead asks a worker to send the parameters and the state of version `round` to the servers
    under the routes of epoch `routing`. `done`: every server has them, so the worker may leave."""

    done: bool = False


class _Tensor(Message, frozen=True, kw_only=True):
    """One tensor of the state of a slice, called `name`: number `part` of the `parts` tensors of this
    slice."""

    name: Label = ""
    dtype: Label = ""
    shape: tuple[Amount, ...] = ()
    part: Amount = 0
    parts: Amount = 0


class Shared(_Tensor, frozen=True, kw_only=True):
    """A worker sends a server one tensor of the state of version `round`. The last message for a
    server has no slice and no payload."""


class Given(_Tensor, frozen=True, kw_only=True):
    """A server's answer to a `Pull` that is `whole`: one tensor of the state of version `round`."""


class Holding(Message, frozen=True, kw_only=True):
    """A server tells the lead that it holds the parameters and the state of version `round` of all
    slices whose primary it is."""
