"""The two modes in which workers read parameters: with rounds, and on arrival. The job's policy
decides the mode.

**With rounds**, a worker continues when all its slices have the same version: the one that the lead
released, or a later one. Its next contribution tells the servers that it no longer reads the
version.

**On arrival**, each contribution also requests the parameters, under a new ticket number. The
servers answer when they have folded the contribution. The worker continues when the answer has
arrived and, under a policy with a bound, the lead permits it. It tells the servers that it has
copied the answer: with the message `Pulled` or, if the model is small, with its next request. With
`--read-ahead` (asp only) the worker does not wait for the answer: it first computes the next
contribution, and then reads the answer.
"""

from polyrhythm.core.effects import Expect
from polyrhythm.core.events import Computed
from polyrhythm.core.kinds import sums_only
from polyrhythm.core.machine import Reason
from polyrhythm.core.model import nbytes_of
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.core.worker.lifecycle import AWAITING, Phase
from polyrhythm.core.worker.outbox import WorkerOutbox
from polyrhythm.core.worker.pulls import NOTHING, Missing, Pulls
from polyrhythm.core.worker.pushes import Pushes
from polyrhythm.errors import InvariantBroken
from polyrhythm.wire import messages as m

_SMALL_NBYTES = 2 * 2**20
"""A model up to this size may stay leased while a worker computes. The spare copy that the servers
then need costs less than a message that ends the lease."""


class WorkerRoundsMode(Pulls):
    __slots__ = ("_pulling", "_released", "_steps", "_whole")
    rests_in = Phase.WAITING
    """The phase in which a worker that has visited all of its points waits."""
    overlaps = False
    """Whether the worker computes while it waits for the answer to its last contribution."""
    answer_first = False
    """Whether the next contribution is sent only after the last one was answered."""

    def __init__(self, outbox: WorkerOutbox, ticket: int = 0, *, steps: bool = False) -> None:
        """`steps`: the worker makes the steps of the optimizer (`--optimizer-on workers`)."""
        super().__init__(outbox, ticket)
        self._steps = steps
        self._released = NOTHING
        self._pulling: dict[int, int] = {}
        """Per server, the version that was pulled from it last; empty if nothing was pulled."""
        self._whole = False
        """Whether the worker lacks the version before the next one. Then it reads parameters and
        state instead of the sum of the gradients."""

    def attach(self, spec: m.ModelSpec) -> None:
        pass

    def why(self) -> Reason:
        return Reason("waits", {"round": self.landing.version + 1})

    def may_go_on(self) -> bool:
        released, landing = self._released, self.landing
        due = released > self.resumed or self.stop
        return due and landing.whole and landing.version >= released

    def resume(self, keep: int | None = None) -> None:
        if self.must_pull:
            self._pulling.clear()
        gap = self.resumed == NOTHING or self.landing.version > self.resumed + 1
        if self._steps and not self._whole and gap:
            raise InvariantBroken("the worker would make a step without the version before it")
        self._whole = False
        self.landing.settle()
        super().resume(keep)

    # -- events of the worker; a method returns True if the worker may now be able to go on ----

    def follow_first_routes(self) -> None:
        self.expect(0)

    def on_seeded(self, sequence: int) -> bool:
        return True

    def release(self, message: m.Release, sequence: int, idle: bool) -> None:
        self.terms = message
        if message.stop:
            self.stop = True
        if message.round > self._released:
            self._released = message.round
        if not message.pushed:
            self.must_pull = True
        self._whole = self._whole or message.whole

    def expect_next(self) -> bool:
        # The version that the worker has may come again from a former primary of a slice. It must not
        # replace the next version of the slice.
        self._outbox.out.append(Expect(self.landing.version + 1))
        return self._released > self.resumed or self.stop or self.must_pull

    def contribute(self, computed: Computed, pushes: Pushes, leaves: bool) -> None:
        pushes.send(computed, self.landing)

    def read_final(self, sequence: int) -> bool:
        return self.expect_next()

    def exhaust(self, *, leaves: bool) -> bool:
        continues = not leaves and self.expect_next()
        self.say_pulled()
        return continues

    def landed_while_resting(self) -> None:
        pass

    def read_again(self, sequence: int, phase: Phase, missing: Missing, *, enough: bool) -> bool:
        """Request the parameters again, because routes have changed. `enough`: the worker leaves,
        and the version that it has is sufficient."""
        if missing is Missing.ANSWERS and not self._pulling:
            return False
        self._pulling.clear()
        self.must_pull = True
        return True

    def pull_missing(self) -> None:
        """Pull from every server whose slices are older than the version to read.

        If a server has folded again meanwhile, it answers with a later version, and the worker then
        requests that version from the other servers. It requests again only after the answer of a
        server has arrived. Otherwise a second answer could overwrite slices of a complete version.
        It requests nothing before the first release, because some servers may not know this worker
        yet.
        """
        if self._released == NOTHING:
            return
        round_ = max(self._released, self.landing.newest)
        for server in self.landing.slices:
            version = self.landing.of(server)
            if version < round_ and self._pulling.get(server, NOTHING) <= version:
                self._pulling[server] = round_
                pull = m.Pull(**self._outbox.identity(), round=round_, whole=self._whole)
                self._outbox.tell_server(server, pull)


class WorkerArrivalMode(Pulls):
    rests_in = Phase.RESTING

    def __init__(
        self, outbox: WorkerOutbox, ticket: int = 0, *, asks: bool, overlaps: bool = False
    ) -> None:
        """`asks`: the worker needs the lead's permission to begin a step. `overlaps`: see
        `--read-ahead`."""
        super().__init__(outbox, ticket)
        self.overlaps = overlaps
        self._asks = asks
        self._small = False
        """Whether the model may stay leased at the servers while the worker computes."""
        self._permitted = False
        """Whether the lead has permitted the worker to begin its next step."""

    def attach(self, spec: m.ModelSpec) -> None:
        self._small = nbytes_of(spec) <= _SMALL_NBYTES

    def why(self) -> Reason:
        return Reason("reading" if self._permitted else "gate")

    @property
    def answer_first(self) -> bool:
        return self.overlaps and self.landing.version != self.ticket

    def may_go_on(self) -> bool:
        permitted = self._permitted or self.stop
        return permitted and self.landing.whole and self.landing.version == self.ticket > 0

    def resume(self, keep: int | None = None) -> None:
        super().resume(self.ticket if self.overlaps else None)
        if not self._small:
            self.say_pulled()

    def follow_first_routes(self) -> None:
        self.expect(None)

    def on_seeded(self, sequence: int) -> bool:
        if self._permitted:
            self.pull_after(sequence)
        return False

    def release(self, message: m.Release, sequence: int, idle: bool) -> None:
        self.terms = message
        self.stop = self.stop or message.stop
        self._permitted = True
        if idle and (message.stop or not message.pushed):
            self.pull_after(sequence)

    def expect_next(self) -> bool:
        return False

    def contribute(self, computed: Computed, pushes: Pushes, leaves: bool) -> None:
        if leaves:
            pushes.send(computed, self.landing)
            return
        self._permitted = not self._asks
        # The contribution requests the parameters. Servers answer when they have folded it, and the
        # answer acknowledges it.
        asked = self._take_ticket(waits=not self.overlaps)
        pushes.send(computed, self.landing, *asked)

    def read_final(self, sequence: int) -> bool:
        self.pull_after(sequence)
        return False

    def exhaust(self, *, leaves: bool) -> bool:
        self._permitted = False
        if self.answer_first:
            self.expect(self.ticket)
        elif self._small:
            self.say_pulled()
        return False

    def landed_while_resting(self) -> None:
        if not self.answer_first:
            self.say_pulled()

    def read_again(self, sequence: int, phase: Phase, missing: Missing, *, enough: bool) -> bool:
        if self.ticket == 0 or enough:
            return False
        if phase in AWAITING or (phase is Phase.RESTING and self.answer_first):
            self.pull_after(sequence)
        elif phase is Phase.COMPUTING and self.answer_first:
            self.pull_after(sequence, waits=False)
            self.expect(None, keep=self.ticket)
        return False

    def pull_missing(self) -> None:
        pass

    def _take_ticket(self, *, waits: bool = True) -> tuple[int, int]:
        """Returns a new ticket for the next request, and the last ticket whose answer was copied if
        the request must report it. `waits`: the worker waits for the answer."""
        self.ticket += 1
        if waits:
            self.expect(self.ticket)
        return self.ticket, self.landing.version if self._small else NOTHING

    def pull_after(self, sequence: int, *, waits: bool = True) -> None:
        """Request the slices of every server once they contain contribution `sequence`, which was
        sent before. The answers carry a new ticket."""
        ticket, pulled = self._take_ticket(waits=waits)
        identity = self._outbox.identity()
        pull = m.Pull(**identity, round=ticket, sequence=sequence, pulled=pulled)
        for server in self.landing.slices:
            self._outbox.tell_server(server, pull)


Mode = WorkerRoundsMode | WorkerArrivalMode


def choose_mode(job: m.JobSpec | None, outbox: WorkerOutbox, ticket: int = 0) -> Mode:
    """The mode of the job's policy. While the job is not known: the mode with rounds."""
    if job is None:
        return WorkerRoundsMode(outbox, ticket)
    traits = traits_of(job.sync)
    if traits.rounds:
        return WorkerRoundsMode(outbox, ticket, steps=sums_only(job))
    asks = traits.asks_before_steps
    return WorkerArrivalMode(outbox, ticket, asks=asks, overlaps=job.read_ahead and not asks)
