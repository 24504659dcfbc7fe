"""Builds the message for one slice from the effect that orders it, for the runtime and the
simulator."""

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.wire import messages as m


def contribution(
    effect: fx.PushSlices,
    worker: int,
    incarnation: int,
    slice_: int,
    rate: float,
    parts: tuple[int, ...] | None = None,
    indices: int | None = None,
    quantised: bool = False,
) -> m.Contribution:
    """Build the message with one slice of a contribution. `parts`: which tensors of a slice of
    non-trained buffers are sent. `indices`: how many rows are sent, if the slice consists of rows.
    If both are None, the whole slice is sent. `quantised`: the slice is sent as 8-bit integers."""
    return m.Contribution(
        view=effect.view,
        routing=effect.routing,
        worker=worker,
        incarnation=incarnation,
        sequence=effect.sequence,
        round=effect.round,
        slice=slice_,
        weight=effect.weight,
        slices=len(effect.slices),
        rate=rate,
        pull=effect.pull,
        pulled=effect.pulled,
        parts=parts,
        indices=indices,
        quantised=quantised,
    )


def seed(effect: fx.SeedSlices, worker: int, incarnation: int, slice_: int) -> m.Seed:
    return m.Seed(routing=effect.routing, worker=worker, incarnation=incarnation, slice=slice_)


def parameters(
    effect: fx.Publish | fx.PublishLatest,
    server: int,
    round_: int,
    slice_: int,
    slot: int,
    holds: tuple[int, ...] = (),
    parts: tuple[int, ...] | None = None,
    steps: tuple[m.SliceStep, ...] = (),
) -> m.Parameters:
    """Build the message with one slice of the parameters. `round_`: the version, or without rounds
    the ticket of the pull. `parts`: which tensors of a slice of non-trained buffers are sent; None
    sends the whole slice. `steps`: what readers do with sums of gradients (`--optimizer-on
    workers`)."""
    return m.Parameters(
        view=effect.view,
        routing=effect.routing,
        worker=effect.worker,
        incarnation=effect.incarnation,
        sequence=effect.sequence,
        round=round_,
        slice=slice_,
        server=server,
        slot=slot,
        holds=holds,
        parts=parts,
        steps=steps,
    )


def landed(message: m.Parameters) -> ev.Landed:
    """The event for a slice that was written to the worker's parameters."""
    return ev.Landed(
        message.server,
        message.slice,
        message.round,
        message.sequence,
        message.routing,
        message.holds,
        message.incarnation,
        message.early,
    )


def early_sum(
    worker: int,
    incarnation: int,
    server: int,
    slice_: int,
    round_: int,
    routing: int,
    step: m.SliceStep,
) -> m.Parameters:
    """The message with the sum of a slice that is sent before the fold of `round_` is ordered."""
    return m.Parameters(
        routing=routing,
        worker=worker,
        incarnation=incarnation,
        round=round_,
        slice=slice_,
        server=server,
        steps=(step,),
        early=True,
    )


def given_state(effect: fx.Publish, server: int, slice_: int) -> m.Given:
    """The head of the messages with the state of a slice, for a worker that asked for it."""
    return m.Given(
        view=effect.view,
        routing=effect.routing,
        worker=effect.worker,
        incarnation=effect.incarnation,
        sequence=effect.sequence,
        round=effect.round,
        slice=slice_,
        server=server,
    )


def given(message: m.Given) -> ev.Landed:
    """The event for a slice whose parameters and state have arrived."""
    return ev.Landed(
        message.server,
        message.slice,
        message.round,
        message.sequence,
        message.routing,
        (),
        message.incarnation,
    )


def shared(effect: fx.ShareState, worker: int, incarnation: int, slice_: int) -> m.Shared:
    """The head of the messages with the state of a slice that a worker shares."""
    return m.Shared(
        routing=effect.routing,
        worker=worker,
        incarnation=incarnation,
        round=effect.round,
        slice=slice_,
    )


def skipped(message: m.Parameters) -> ev.Skipped:
    """The event for a slice that has arrived although the worker no longer needs it."""
    return ev.Skipped(message.server, message.sequence, message.routing, message.incarnation)
