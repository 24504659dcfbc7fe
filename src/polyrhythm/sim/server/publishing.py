"""How a version leaves a simulated server for a reader, and that nobody writes on it meanwhile."""

from collections.abc import Callable
from typing import Any, TypeAlias

from polyrhythm.core import builders
from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.errors import InvariantBroken
from polyrhythm.sim.model.link import Channel
from polyrhythm.sim.process import Process
from polyrhythm.sim.server.links import SimServerLinks
from polyrhythm.sim.server.slice_store import Place, SimSliceStore

_Slots: TypeAlias = tuple[int, ...]
_Read: TypeAlias = tuple[list[Place], list[Any]]
"""The places that a version is read from, and what lay there when it was sent."""
_Sending: TypeAlias = tuple[Channel, int, _Read | None]
"""The channel, the worker, and what it reads if that is checked."""


class SimPublishing:
    def __init__(
        self,
        process: Process,
        server: int,
        mesh: SimServerLinks,
        placed: Callable[[], SimSliceStore],
        slept_through: Callable[[Callable[[], None]], bool],
    ) -> None:
        """`placed`: what the server holds. `slept_through`: the process is stopped, and does this
        when it goes on."""
        self._process = process
        self._server = server
        self._name = fx.server_name(server)
        self._mesh = mesh
        self._placed = placed
        self._slept_through = slept_through
        self._leaving: dict[tuple[int, int], list[_Sending]] = {}
        """By the moment at which they will have left, and the version or ticket."""

    def _reader(self, effect: fx.Publish | fx.PublishLatest) -> Channel | None:
        way = self._mesh.peers.get(fx.worker_name(effect.worker))
        return way if way is not None and way.back.incarnation == effect.incarnation else None

    def publish(self, effect: fx.Publish) -> None:
        way = self._reader(effect)
        if way is not None:
            memory = self._placed()
            self._send(way, memory, (effect.slot,) * len(memory.slices), effect.round, effect)
        else:  # nothing leaves, so nothing is read
            self._process.put(self._name, ev.Sent((effect.worker,), effect.round))

    def publish_latest(self, effect: fx.PublishLatest) -> None:
        way = self._reader(effect)
        if way is not None:
            memory = self._placed()
            slots = memory.lease(effect.worker, effect.ticket)
            self._send(way, memory, slots, effect.ticket, effect)

    def _send(
        self,
        way: Channel,
        memory: SimSliceStore,
        slots: _Slots,
        round_: int,
        effect: fx.Publish | fx.PublishLatest,
    ) -> None:
        clock = self._process.clock
        left_ns = clock.now_ns
        for (slice_, nbytes), slot in zip(memory.slices.items(), slots, strict=True):
            message = builders.parameters(effect, self._server, round_, slice_, slot)
            left_ns = way.send(message, nbytes)
        read = None
        if self._process.check:
            places = memory.places(slots)
            read = places, memory.stamps(places)
        key = left_ns, round_
        leaving = self._leaving.get(key)
        if leaving is None:
            leaving = self._leaving[key] = []
            clock.at(left_ns, self._have_left, key)
        leaving.append((way, effect.worker, read))

    def _have_left(self, key: tuple[int, int]) -> None:
        """Of a version that goes to many, many copies leave at the same moment."""
        if self._slept_through(lambda: self._have_left(key)):
            return
        peers = self._mesh.peers
        sent = []
        for way, worker, read in self._leaving.pop(key):
            if peers.get(way.back.peer) is not way:
                continue  # its link is over, and with it the lease
            if read is not None:
                self._see_unwritten(way, *read)
            sent.append(worker)
        self._process.post(self._name, ev.Sent(tuple(sent), key[1]))

    def _see_unwritten(self, way: Channel, places: list[Place], stamps: list[Any]) -> None:
        if self._placed().stamps(places) != stamps:
            raise InvariantBroken(f"{self._name} wrote what {way.back.peer} was reading")
