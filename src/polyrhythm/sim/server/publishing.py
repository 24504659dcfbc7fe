"""Sends versions from a simulated server to readers, and checks that no version is overwritten
while it is being sent."""

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from polyrhythm.core import builders
from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.names import server_name, worker_name
from polyrhythm.errors import InvariantBroken
from polyrhythm.sim.model.link import Channel
from polyrhythm.sim.process import Process
from polyrhythm.sim.server.links import SimServerLinks
from polyrhythm.sim.server.slice_store import CarriedSum, Place, SimSliceStore
from polyrhythm.wire import messages as m
from polyrhythm.wire.messages import SliceStep

_Slots: TypeAlias = tuple[int, ...]
_Read: TypeAlias = tuple[list[Place], list[Any]]
"""The places from which a version is read, and their stamps when sending began."""
_Sending: TypeAlias = tuple[Channel, int, _Read | None]
"""One reader of a version: its channel, its worker, and the places that it reads (None without a
checker)."""


class SimPublishing:
    def __init__(
        self,
        process: Process,
        server: int,
        links: SimServerLinks,
        placed: Callable[[], SimSliceStore],
        slept_through: Callable[[Callable[[], None]], bool],
    ) -> None:
        """`placed` returns the slice store. `slept_through` returns True if the process is stopped
        or dead. A stopped process calls the argument of `slept_through` when it continues."""
        self._process = process
        self._server = server
        self._name = server_name(server)
        self._links = links
        self._placed = placed
        self._slept_through = slept_through
        self._leaving: dict[tuple[int, int], list[_Sending]] = {}
        """The versions that are being sent. The key is the time at which the last byte leaves, and
        the round or the ticket."""

    def _reader(self, effect: fx.Publish | fx.PublishLatest) -> Channel | None:
        channel = self._links.table.links.get(worker_name(effect.worker))
        if channel is not None and channel.incarnation == effect.incarnation:
            return channel.back
        return None

    def publish(self, effect: fx.Publish) -> None:
        channel = self._reader(effect)
        if channel is None:  # the worker is gone: end its lease as if it had read the version
            self._process.put(self._name, ev.Sent((effect.worker,), effect.round))
            return
        memory, round_, slot = self._placed(), effect.round, effect.slot
        early = memory.early(round_, (effect.worker, effect.incarnation))
        left_ns: int | None = self._process.clock.now_ns
        for slice_, nbytes in memory.slices.items():
            if effect.whole:
                given = builders.given_state(effect, self._server, slice_)
                left_ns = channel.send(given, memory.state_nbytes.get(slice_, nbytes))
            elif slice_ not in early:
                message = builders.parameters(effect, self._server, round_, slice_, slot)
                if self._process.check:
                    message = _carry(message, memory)
                left_ns = channel.send(message, nbytes)
        if early and not effect.whole:
            acknowledged = m.Acknowledged(
                view=effect.view,
                routing=effect.routing,
                server=self._server,
                worker=effect.worker,
                incarnation=effect.incarnation,
                sequence=effect.sequence,
            )
            channel.send(acknowledged)
        slots = (slot,) * len(memory.slices) if self._process.check else ()
        self._leave(channel, effect.worker, left_ns, round_, memory, slots)

    def send_early(self, slice_: int) -> None:
        """With `--optimizer-on workers`: send the sum of a slice to which every member has
        contributed."""
        memory = self._placed()
        if memory.slices.get(slice_) is None or not memory.is_summed(slice_):
            return
        links, readers = self._links.table.links, {}
        for row in memory.rules.members:
            channel = links.get(worker_name(row.worker))
            if channel is not None and channel.incarnation == row.incarnation:
                readers[row.worker, row.incarnation] = channel.back
        round_, cargo = memory.sum_early(slice_, frozenset(readers))
        routing = memory.rules.routing
        for reader, back in readers.items():
            place = (self._server, slice_, round_, routing)
            message = builders.early_sum(*reader, *place, SliceStep(1.0))
            if self._process.check:
                message = CarriedSum(**msgspec.structs.asdict(message), cargo=cargo)
            back.send(message, memory.slices[slice_])

    def publish_latest(self, effect: fx.PublishLatest) -> None:
        channel = self._reader(effect)
        if channel is not None:
            memory = self._placed()
            slots = memory.lease(effect.worker, effect.ticket)
            left_ns: int | None = self._process.clock.now_ns
            for (slice_, nbytes), slot in zip(memory.slices.items(), slots, strict=True):
                message = builders.parameters(effect, self._server, effect.ticket, slice_, slot)
                left_ns = channel.send(message, nbytes)
            self._leave(channel, effect.worker, left_ns, effect.ticket, memory, slots)

    def _leave(
        self,
        channel: Channel,
        worker: int,
        left_ns: int | None,
        round_: int,
        memory: SimSliceStore,
        slots: _Slots,
    ) -> None:
        """Remember that the worker reads from these slots until the last byte has left."""
        read = None
        if self._process.check:
            places = memory.places(slots)
            read = places, memory.stamps(places)
        if left_ns is None:
            sending = [(channel, worker, read)]
            channel.when_left(lambda _: self._have_left(sending, round_))
            return
        key = left_ns, round_
        leaving = self._leaving.get(key)
        if leaving is None:
            leaving = self._leaving[key] = []
            self._process.clock.at(left_ns, self._have_left_at, key)
        leaving.append((channel, worker, read))

    def _have_left_at(self, key: tuple[int, int]) -> None:
        self._have_left(self._leaving.pop(key), key[1])

    def _have_left(self, leaving: list[_Sending], round_: int) -> None:
        """Tell the machine, in one event, about all readers of messages whose last byte has
        left."""
        if self._slept_through(lambda: self._have_left(leaving, round_)):
            return
        links = self._links.table.links
        sent = []
        for channel, worker, read in leaving:
            if links.get(channel.back.peer) is not channel.back:
                continue  # the link has closed, and the lease has ended with it
            if read is not None:
                self._see_unwritten(channel, *read)
            sent.append(worker)
        self._process.post(self._name, ev.Sent(tuple(sent), round_))

    def _see_unwritten(self, channel: Channel, places: list[Place], stamps: list[Any]) -> None:
        if self._placed().stamps(places) != stamps:
            raise InvariantBroken(
                f"{self._name} overwrote a version that {channel.back.peer} was reading"
            )


def _carry(message: m.Parameters, memory: SimSliceStore) -> m.Parameters:
    """The message with the contributions in the sum, if servers send sums."""
    if not memory.state_nbytes:
        return message
    cargo = memory.sums.get(message.slice, ())
    return CarriedSum(**msgspec.structs.asdict(message), cargo=cargo)
