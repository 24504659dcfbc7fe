"""The points that simulated workers send to each other (`--migrate full`): only their sizes travel.

As in the runtime, points are sent while both workers compute, and a worker that has received all
points of a chunk reports it at once.
"""

from collections.abc import Callable, Collection

from polyrhythm.core import events as ev
from polyrhythm.core.machine import Event, Reason
from polyrhythm.core.worker.deliveries import refusal
from polyrhythm.sim.model.link import Channel
from polyrhythm.sim.model.statistics import CarriedPart, ChunkMemory
from polyrhythm.wire import messages as m


class SimDeliveries:
    __slots__ = (
        "_channels",
        "_dial",
        "_memories",
        "_memory",
        "_point_nbytes",
        "_post",
        "_sent",
        "_shares",
        "memory_of",
        "private",
        "received",
    )

    def __init__(
        self,
        dial: Callable[[m.ChunkSend], Channel | None],
        post: Callable[[Event], None],
        point_nbytes: int,
        memory: int | None,
        *,
        shares: bool = False,
    ) -> None:
        """`dial` returns the channel to another worker, or None if it does not answer. `post` gives
        the machine an event. `memory`: the most points of other workers that fit into memory; None:
        any number. `shares`: points of private data may be sent."""
        self._shares = shares
        self.private = False
        """Whether every worker of the job has its own data set."""
        self._dial = dial
        self._post = post
        self._point_nbytes = point_nbytes
        self._memory = memory
        self._channels: dict[tuple[int, int], Channel] = {}
        self._sent: set[int] = set()
        """The numbers of the deliveries that were sent."""
        self.memory_of: Callable[[int], ChunkMemory | None] = lambda chunk: None
        """Kind statistics: the memory of the points of a chunk of this worker."""
        self._memories: dict[int, ChunkMemory] = {}
        self.received: dict[int, tuple[int, int]] = {}
        """Per chunk that was received: the number of the delivery, and the number of points."""

    def take(self, lease: m.Leased) -> None:
        """Send the chunks that this lease names, and drop the points that it does not need."""
        if self.received:
            self._drop_except((), lease.earlier)
            needed = {chunk.chunk for chunk in lease.chunks} | {send.chunk for send in lease.sends}
            self._drop_except(needed | {*lease.copies, *lease.arriving}, lease.delivery)
        for send in lease.sends:
            if send.number not in self._sent:
                self._sent.add(send.number)
                self._send(send)

    def _drop_except(self, needed: Collection[int], delivery: int) -> None:
        for chunk, (number, _) in list(self.received.items()):
            if chunk not in needed and number <= delivery:
                del self.received[chunk]
                self._memories.pop(chunk, None)

    def _send(self, send: m.ChunkSend) -> None:
        if (why := refusal(private=self.private, shares=self._shares)) is not None:
            self._post(ev.PointsDelivered(send.chunk, send.number, fault=why))
            return
        key = (send.worker, send.incarnation)
        channel = self._channels.get(key) or self._dial(send)
        if channel is None:
            fault = Reason("move-unreachable", {"detail": "it does not answer"})
            self._post(ev.PointsDelivered(send.chunk, send.number, fault=fault))
            return
        self._channels[key] = channel
        points = send.last - send.first
        part = m.ChunkPart(
            chunk=send.chunk, number=send.number, points=points, offset=0, count=points
        )
        memory = self.memory_of(send.chunk)
        if memory is not None:
            fields = {name: getattr(part, name) for name in part.__struct_fields__}
            part = CarriedPart(**fields, memory=memory)
        channel.send(part, points * self._point_nbytes)

    def receive(self, part: m.ChunkPart) -> None:
        held = sum(points for _, points in self.received.values())
        nbytes = part.points * self._point_nbytes
        if self._memory is not None and held + part.points > self._memory:
            fault = Reason("move-no-memory", {"nbytes": nbytes})
            self._post(ev.PointsDelivered(part.chunk, part.number, fault=fault))
            return
        self.received[part.chunk] = (part.number, part.points)
        if isinstance(part, CarriedPart):
            self._memories[part.chunk] = part.memory
        self._post(ev.PointsDelivered(part.chunk, part.number, nbytes))

    def take_memory(self, chunk: int) -> ChunkMemory | None:
        """The memory of the points of a received chunk. It can be taken once."""
        return self._memories.pop(chunk, None)

    def close(self, end: Callable[[Channel], None]) -> None:
        """End each link to other workers by calling `end`, because this worker ends."""
        for channel in self._channels.values():
            end(channel)
