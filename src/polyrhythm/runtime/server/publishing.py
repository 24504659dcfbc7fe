"""Sends versions to workers: slice by slice, or as one reference over links that carry
references."""

from collections.abc import Callable

from msgspec.structs import replace

from polyrhythm.core import builders
from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.names import server_name, worker_name
from polyrhythm.io.link import Link
from polyrhythm.runtime import crashpoint
from polyrhythm.runtime.driver import Driver
from polyrhythm.runtime.net.peers import Peers
from polyrhythm.runtime.server.slice_store import SliceStore, SummedSliceStore
from polyrhythm.runtime.slice_state import (
    parts_of_state,
)
from polyrhythm.wire import messages as m


class Publishing:
    def __init__(
        self,
        server: int,
        placed: Callable[[], SliceStore],
        peers: Peers,
        driver: Driver,
        *,
        workers: int,
    ) -> None:
        """`workers`: about how many workers read a version at the same time."""
        self._server = server
        self._name = server_name(server)
        self._placed = placed
        self._peers = peers
        self._driver = driver
        self._workers = max(1, workers)

    def _reader(self, effect: fx.Publish | fx.PublishLatest) -> Link | None:
        link = self._peers.get(worker_name(effect.worker))
        return link if link is not None and link.incarnation == effect.incarnation else None

    def publish(self, effect: fx.Publish) -> None:
        link = self._reader(effect)
        if link is None:  # the worker is gone: end its lease as if it had read the version
            self._driver.put(self._name, ev.Sent((effect.worker,), effect.round))
            return
        if effect.whole:
            self._give(link, effect)
            return
        slots = [effect.slot] * len(self._placed().primary.ids)
        self._send(link, slots, effect.round, effect)
        if effect.first:
            link.flush()

    def _give(self, link: Link, effect: fx.Publish) -> None:
        """With `--optimizer-on workers`: send the parameters and the state of the optimizer, and
        the model's buffers of the version."""
        store = self._placed()
        assert isinstance(store, SummedSliceStore)
        given = set()
        for slice_, state in store.given():
            given.add(slice_)
            for fields, data in parts_of_state(state):
                message = replace(builders.given_state(effect, self._server, slice_), **fields)
                link.send(message, (data,), flush=crashpoint.ON)
        slot = store.primary.slots.at(effect.slot)
        for index, slice_ in enumerate(store.primary.ids):
            if slice_ not in given:
                sent = (effect.round, slice_, effect.slot)
                values = builders.parameters(effect, self._server, *sent)
                link.send(values, [slot.pieces[index]], flush=crashpoint.ON)
        link.flush()
        self._peers.touch(link)

    def publish_latest(self, effect: fx.PublishLatest) -> None:
        link = self._reader(effect)
        if link is not None:
            slots = self._placed().lease(effect.worker, effect.ticket)
            self._send(link, slots, effect.ticket, effect)
            link.flush()  # send at once, because the worker waits for these parameters

    def _send(
        self, link: Link, slots: list[int], round_: int, effect: fx.Publish | fx.PublishLatest
    ) -> None:
        """Send every slice from its slot. If the link carries references and the slices are in one
        segment, they are sent as one reference. *Slices can move while a version is on its way, so
        such a message lists the slices of this server.*"""
        primary = self._placed().primary
        whole = None
        if link.kind.has_payload_references and len(set(slots)) == 1:
            whole = primary.slots.at(slots[0]).whole
        if whole is None:
            self._send_slices(link, slots, round_, effect)
        else:
            every, slot = m.EVERY_SLICE, slots[0]
            steps = primary.steps_of(primary.ids)
            message = builders.parameters(
                effect, self._server, round_, every, slot, primary.ids, None, steps
            )
            link.send(message, (whole,), flush=crashpoint.ON)
            crashpoint.reach(self._name, "sent", message)
        self._peers.touch(link)

    def _send_slices(
        self,
        link: Link,
        slots: list[int],
        round_: int,
        effect: fx.Publish | fx.PublishLatest,
    ) -> None:
        """Send the slices one by one. Over links that carry bytes, buffers that the reader already
        has are not sent."""
        store = self._placed()
        primary = store.primary
        news: dict[int, tuple[int, ...]] = {}
        if not link.kind.has_payload_references:
            news = store.news_for(effect.worker, effect.incarnation)
        pieces = [primary.slots.at(slot).pieces[index] for index, slot in enumerate(slots)]
        sent = list(zip(primary.ids, slots, pieces, strict=True))
        if isinstance(store, SummedSliceStore):
            early = self._sent_early(store, effect, round_)
            sent = [each for each in sent if each[0] not in early]
            if early:
                self._acknowledge(link, effect)
            if not sent:
                self._driver.put(self._name, ev.Sent((effect.worker,), round_))
                return
        first = self._first_for(effect.worker, len(sent))
        sent = sent[first:] + sent[:first]
        for slice_, slot, piece in sent:
            parts = news.get(slice_)
            payload = [piece]
            if parts is not None:
                payload = primary.pieces_of(slice_, primary.slots.at(slot), parts)
            steps = primary.steps_of((slice_,))
            message = builders.parameters(
                effect, self._server, round_, slice_, slot, (), parts, steps
            )
            last = slice_ == sent[-1][0] and not link.kind.has_payload_references
            done = self._sent_event(effect.worker, round_) if last else None
            link.send(message, payload, flush=crashpoint.ON, done=done)
            crashpoint.reach(self._name, "sent", message)

    def _sent_early(
        self, store: SummedSliceStore, effect: fx.Publish | fx.PublishLatest, round_: int
    ) -> set[int]:
        """The slices whose sums were sent to this reader before the fold."""
        reader, primary = (effect.worker, effect.incarnation), store.primary
        return {slice_ for slice_ in primary.ids if primary.has_early(slice_, round_, reader)}

    def _acknowledge(self, link: Link, effect: fx.Publish | fx.PublishLatest) -> None:
        """Send the acknowledgement that unsent slices of a version would have carried."""
        message = m.Acknowledged(
            view=effect.view,
            routing=effect.routing,
            server=self._server,
            worker=effect.worker,
            incarnation=effect.incarnation,
            sequence=effect.sequence,
        )
        link.send(message, flush=crashpoint.ON)

    def _first_for(self, worker: int, slices: int) -> int:
        """The index of the slice that this reader gets first. Each reader begins at a different
        slice, so that the links hash different slices and do not wait for each other's digests."""
        return worker * slices // self._workers % slices if slices else 0

    def _sent_event(self, worker: int, round_: int) -> Callable[[], None]:
        return lambda: self._driver.post(self._name, ev.Sent((worker,), round_))
