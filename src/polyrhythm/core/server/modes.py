"""The two modes of a server: with rounds, and on arrival. The job's policy chooses one for the
whole job.

*With rounds, a server adds slices to aggregates, reports `Arrived`, and folds when the lead sends
`Fold`. A late contribution goes into the next aggregate. On arrival, each slice is folded when it
arrives, and a `Fold` of the lead only names the members.* A mode decides when a contribution is
acknowledged, which version a reader gets, and when the reader's lease ends.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from polyrhythm.core import events as ev
from polyrhythm.core.effects import FreeSlots, Freeze, Publish, PublishLatest, StartFold, Unlease
from polyrhythm.core.kinds import keeps_rows
from polyrhythm.core.server.leases import Leases
from polyrhythm.core.server.replication import Step, fold_step
from polyrhythm.core.server.state import ServerState
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.wire import messages as m


class ServerMode(Protocol):
    finished: Callable[[], None]
    """Called when a fold is finished."""

    def on_contributed(self, event: ev.Contributed) -> None:
        """Handle a contribution whose slices have all been added."""

    def fold(self, message: m.Fold, now_ns: int) -> None:
        """Fold as the lead orders. The order names members and readers; the caller has already set
        the members."""

    def is_folded(self, message: m.Fold) -> bool:
        """Whether the former primary of these slices has folded the round already."""

    def on_folded(self, event: ev.FoldDone, now_ns: int) -> None:
        """Note that this server has folded the slices of the round."""

    def on_settled(self, step: Step, now_ns: int) -> None:
        """Acknowledge the contributions in this step. Every replica has made it."""

    def take_over(self, event: ev.Rerouted, *, had_none: bool) -> None:
        """Handle a change of the slices whose primary this server is. `had_none`: this server was
        the primary of no slice before."""

    def contained(self) -> dict[int, int] | None:
        """Per worker, the last contribution in the present version; None if the version contains
        all contributions that have arrived in its rounds."""

    def may_be_placed(self) -> bool:
        """Whether this server can report to the lead that it applies the routes."""

    def placed_rows(self, rows: Iterable[m.Row]) -> tuple[m.Row, ...]:
        """Those of `rows` whose contributions are in the slices of this server and of every
        replica."""

    def can_answer(self, pull: m.Pull) -> bool:
        """Whether this server has the version that the reader asked for."""

    def answer(self, pull: m.Pull) -> None: ...

    def release(self, worker: int, round_: int) -> None:
        """End the lease of a reader that has copied this version."""

    def on_sent(self, workers: Iterable[int], round_: int) -> None:
        """End the leases of readers that have been sent this whole version."""

    def forget(self, worker: int) -> None:
        """End the leases of a reader whose link has closed."""

    def free(self) -> None:
        """Free slots that are not needed, unless a fold or a change of routes may still write to
        them."""

    def freeze(self) -> None:
        """From now on, change the parameters only if the lead orders a fold."""


def choose_mode(server: int, job: m.JobSpec) -> tuple[ServerState, ServerMode]:
    rounds = traits_of(job.sync).rounds
    leases = Leases(rotating=rounds and job.updater == "addition", replicas=job.replicas > 0)
    state = ServerState(server, job, leases)
    if not rounds:
        return state, OnArrivalMode(state)
    return state, RowsMode(state) if keeps_rows(job.kind) else RoundsMode(state)


class _Mode:
    def __init__(self, state: ServerState) -> None:
        self._state = state
        self.finished: Callable[[], None] = lambda: None

    def _finish(self, weight: float, now_ns: int) -> None:
        """Complete a fold that this server and every replica have made: acknowledge, publish, and
        tell the lead."""
        state = self._state
        fold, state.folding = state.folding, None
        assert fold is not None
        state.since_ns = now_ns
        readers = state.acks.last_first(fold.readers)
        contained = self.contained()
        for worker, sequence in state.acks.on_folded(fold.round, frozenset(readers), contained):
            state.acknowledge(worker, sequence)
        first = readers[0] if len(readers) > 1 else None
        for worker in readers:
            self._publish(worker, False, worker == first)
        state.leases.on_published()
        for pull in list(state.leases.pulls.values()):
            self.answer(pull)
        state.tell_lead(m.Folded(**state.identity(), round=fold.round, weight=weight))
        self.free()
        self.finished()

    def contained(self) -> dict[int, int] | None:
        return None

    def _publish(
        self, worker: int, asked: bool, first: bool = False, *, whole: bool = False
    ) -> None:
        state = self._state
        if not state.leases.lease(worker, asked):
            return
        acks, versions = state.acks, state.versions
        state.out.append(
            Publish(
                worker,
                acks.members[worker],
                versions.version,
                versions.slot,
                acks.acknowledged(worker),
                state.view,
                state.epoch.since,
                first,
                whole,
            )
        )

    def answer(self, pull: m.Pull) -> None:
        """Answer now if the version exists; otherwise queue the pull."""
        if self._state.epoch.place is None and self.can_answer(pull):
            self._send_version(pull)
        else:
            self._state.leases.ask(pull)

    def free(self) -> None:
        state = self._state
        writing = state.folding is not None or state.epoch.changing
        if not writing and (slots := state.versions.surplus()):
            state.out.append(FreeSlots(slots))

    def can_answer(self, pull: m.Pull) -> bool:
        raise NotImplementedError

    def _send_version(self, pull: m.Pull) -> None:
        raise NotImplementedError


class RoundsMode(_Mode):
    def __init__(self, state: ServerState) -> None:
        super().__init__(state)
        self._weight = 0.0
        self._target = (0, 0)

    def on_contributed(self, event: ev.Contributed) -> None:
        state = self._state
        worker, sequence, round_ = event.worker, event.sequence, event.round
        state.leases.on_contributed(worker, event.version)
        if round_ <= state.versions.version:
            state.acknowledge(worker, sequence)
        else:
            state.acks.arrive(worker, sequence, round_)
        state.report(worker, event.incarnation, sequence, round_)

    def is_folded(self, message: m.Fold) -> bool:
        return 0 < message.round <= self._state.versions.version

    def fold(self, message: m.Fold, now_ns: int) -> None:
        if message.round == 0:
            self._finish(0.0, now_ns)
            return
        slot, fill = self._target = self._state.versions.target()
        self._state.writing = True
        self._state.out.append(StartFold(message.round, slot, fill, message.share, message.rows))

    def on_folded(self, event: ev.FoldDone, now_ns: int) -> None:
        self._weight = event.weight
        self._state.versions.on_folded(event.round, *self._target)
        if self._state.replication.issue(fold_step(event.round)):
            self._finish(event.weight, now_ns)

    def on_settled(self, step: Step, now_ns: int) -> None:
        folding = self._state.folding
        if folding is not None and fold_step(folding.round) == step and not self._state.writing:
            self._finish(self._weight, now_ns)

    def take_over(self, event: ev.Rerouted, *, had_none: bool) -> None:
        state = self._state
        if event.version > 0:
            state.replication.issue(fold_step(event.version))
        for worker, _, sequence in state.acks.on_slices_changed(event.rows, had_none=had_none):
            state.acks.arrive(worker, sequence, event.round)

    def may_be_placed(self) -> bool:
        return not self._state.replication.pending

    def placed_rows(self, rows: Iterable[m.Row]) -> tuple[m.Row, ...]:
        return tuple(rows)

    def can_answer(self, pull: m.Pull) -> bool:
        """Whether this server has the version and no fold writes to it. A pull that is `whole`
        waits until a worker has shared the state of the version."""
        state = self._state
        if pull.whole and not state.has_state:
            return False
        return state.folding is None and state.versions.version >= pull.round

    def _send_version(self, pull: m.Pull) -> None:
        self._publish(pull.worker, asked=True, whole=pull.whole)

    def release(self, worker: int, round_: int) -> None:
        if self._state.versions.release(worker, round_):
            self.free()

    def on_sent(self, workers: Iterable[int], round_: int) -> None:
        release = self._state.versions.release
        for worker in workers:
            if release(worker, round_):
                self.free()

    def forget(self, worker: int) -> None:
        self._state.leases.forget(worker)
        self.free()

    def freeze(self) -> None:
        """Does nothing: only a fold changes parameters."""


class RowsMode(RoundsMode):
    """Rounds of kind statistics: a fold contains exactly the contributions that the lead names. *A
    contribution is acknowledged when a fold has named it and every slice of this server has made
    that fold.*"""

    def __init__(self, state: ServerState) -> None:
        super().__init__(state)
        self._rows: dict[tuple[int, int], int] = {}
        """Per member, its last contribution in the present version, as the last fold has named
        it."""
        self._round = 0
        """The round of the fold that named `_rows`."""

    def on_contributed(self, event: ev.Contributed) -> None:
        state = self._state
        state.leases.on_contributed(event.worker, event.version)
        if event.sequence <= self._rows.get((event.worker, event.incarnation), 0):
            state.acknowledge(event.worker, event.sequence)
        else:
            state.acks.arrive(event.worker, event.sequence, event.round)
        state.report(event.worker, event.incarnation, event.sequence, event.round)

    def fold(self, message: m.Fold, now_ns: int) -> None:
        self._rows = {(row.worker, row.incarnation): row.sequence for row in message.rows}
        self._round = message.round
        super().fold(message, now_ns)

    def take_over(self, event: ev.Rerouted, *, had_none: bool) -> None:
        if event.version < self._round:
            # this server has become the primary of a slice that lacks the fold of `_round`
            self._rows = {}
        super().take_over(event, had_none=had_none)

    def contained(self) -> dict[int, int]:
        # the sequences of each incarnation begin at 1, so rows of earlier incarnations are left out
        return {
            worker: self._rows.get((worker, incarnation), 0)
            for worker, incarnation in self._state.acks.members.items()
        }


class OnArrivalMode(_Mode):
    def on_contributed(self, event: ev.Contributed) -> None:
        state = self._state
        if event.pull:
            pull = m.Pull(
                worker=event.worker,
                incarnation=event.incarnation,
                round=event.pull,
                sequence=event.sequence,
            )
            state.leases.ask(pull)
        if state.replication.issue((event.worker, event.incarnation, event.sequence)):
            self._secure(event.worker, event.incarnation, event.sequence)
        if event.pulled >= 0:
            self.release(event.worker, event.pulled)

    def _secure(self, worker: int, incarnation: int, sequence: int) -> None:
        """Acknowledge a contribution that is in the parameters of this server and of every replica.
        If a pull waits for it, the answer to the pull contains the acknowledgement."""
        state = self._state
        state.acks.acknowledge(worker, sequence)
        pull = state.leases.pulls.get(worker)
        if pull is not None and pull.sequence <= sequence:
            self._send_version(pull)
        else:
            state.acknowledge(worker, sequence)
        state.report(worker, incarnation, sequence, 1)

    def is_folded(self, message: m.Fold) -> bool:
        return False

    def fold(self, message: m.Fold, now_ns: int) -> None:
        if message.last:
            self.freeze()
        self._finish(0.0, now_ns)

    def freeze(self) -> None:
        if not self._state.frozen:
            self._state.frozen = True
            self._state.out.append(Freeze())

    def on_folded(self, event: ev.FoldDone, now_ns: int) -> None:
        raise AssertionError("a fold of a round was ordered in a job without rounds")

    def on_settled(self, step: Step, now_ns: int) -> None:
        if self._state.is_member(*step[:2]):
            self._secure(*step)

    def take_over(self, event: ev.Rerouted, *, had_none: bool) -> None:
        state = self._state
        for step in state.acks.on_slices_changed(event.rows, had_none=False):
            if state.replication.issue(step):
                self._secure(*step)

    def may_be_placed(self) -> bool:
        return True

    def placed_rows(self, rows: Iterable[m.Row]) -> tuple[m.Row, ...]:
        return self._state.acks.secured(rows)

    def can_answer(self, pull: m.Pull) -> bool:
        """Whether the reader's own last contribution is in the slices, or the parameters are
        final."""
        state = self._state
        return state.frozen or state.acks.acknowledged(pull.worker) >= pull.sequence

    def _send_version(self, pull: m.Pull) -> None:
        state = self._state
        state.leases.pulls.pop(pull.worker, None)
        sequence = state.acks.acknowledged(pull.worker)
        reader = (pull.worker, pull.incarnation)
        answer = PublishLatest(*reader, pull.round, sequence, state.view, state.epoch.since)
        state.out.append(answer)

    def release(self, worker: int, round_: int) -> None:
        self._state.out.append(Unlease(worker, round_))

    def on_sent(self, workers: Iterable[int], round_: int) -> None:
        for worker in workers:
            self.release(worker, round_)

    def forget(self, worker: int) -> None:
        self._state.out.append(Unlease(worker, None))
