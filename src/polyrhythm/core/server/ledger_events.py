"""Events and messages that a server derives from its ledger, for the runtime and the simulator.

The caller holds the ledger's lock.
"""

from collections.abc import Sequence

from polyrhythm.core.events import Contributed, Rerouted, StateAdopted, StepCopied
from polyrhythm.core.server.ledger import Ledger
from polyrhythm.core.server.replication import fold_step
from polyrhythm.wire.messages import Contribution, Copy, Fetch, Route, Row, State


def kept_by(server: int, routes: Sequence[Route]) -> dict[int, Route]:
    """The routes of the slices that `server` holds, as the primary or as a copy."""
    return {slice_: route for slice_, route in enumerate(routes) if server in route.holders}


def step_of(copy: Copy) -> Row:
    """The step of a `Copy`: a contribution that was folded by itself, or the fold of a round."""
    if copy.worker < 0:
        return Row(*fold_step(copy.stamp.number))
    return Row(copy.worker, copy.incarnation, copy.sequence)


def contributed(ledger: Ledger, message: Contribution) -> Contributed | None:
    """Note that the slice of this message was added. Returns the event that reports the contribution,
    if all of its slices for this server are added; else None."""
    whose = message.worker, message.incarnation, message.sequence
    round_ = ledger.add(*whose, message.slice, message.slices)
    if round_ is None:
        return None
    # a worker computes the contribution to a round from the version of the round before it
    version = message.round - 1
    return Contributed(*whose, round_, message.pull, message.pulled, version)


def copied(ledger: Ledger, copy: Copy) -> StepCopied | None:
    """The event that reports this step, if the step is made in all slices that are copied from its
    primary; else None."""
    made = ledger.made(copy.server, (step_of(copy),))
    return StepCopied(copy.server, made) if made else None


def adopted(ledger: Ledger, state: State) -> StateAdopted | None:
    """The event that reports the arrival of this state, if all copies of the primary's slices are
    current now; else None."""
    if not ledger.adopted(state.server):
        return None
    return StateAdopted(state.server, state.routing, ledger.made_all(state.server))


def rerouted(ledger: Ledger, routing: int) -> Rerouted:
    version, rows = ledger.least()
    return Rerouted(routing, version, rows, ledger.made_of_all(), ledger.round)


def fetch(ledger: Ledger, server: int, slices: Sequence[int], routing: int) -> Fetch:
    """The request of `server` for these slices, with the stamps of the copies that it has."""
    held = tuple(ledger.stamp(slice_) for slice_ in slices)
    return Fetch(routing=routing, server=server, held=held)
