"""What one incarnation of a worker reads: what it was released for, asked for and has.

*A worker computes on parameters that contain its own last contribution, under every policy.* With
rounds it goes on when all its slices are of one version, the one that the lead released or a later one.
Without rounds it asks for the parameters with each contribution; servers answer when that contribution
is folded, and the worker goes on when the answer is here and, under a bound, the lead permits it.
`--read-ahead` (asp only) breaks this rule on purpose: the worker goes on at once, and takes the answer
to one contribution when the next one is computed.

With rounds a contribution says that the version it was computed on is no longer read. Without rounds a
worker says so with `Pulled`, or, where the model is small, with its next request.
"""

from polyrhythm.core.effects import Expect, Resume
from polyrhythm.core.model import nbytes_of
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.core.worker.assembly import NOTHING, Assembly
from polyrhythm.core.worker.outbox import WorkerOutbox
from polyrhythm.wire import messages as m

_SMALL_NBYTES = 2 * 2**20
"""A model up to this size may stay leased at the servers while a worker computes: the spare copy that
this takes costs less than a message that ends the lease."""


class ReadMode:
    """How the workers of this job read."""

    def __init__(
        self, *, rounds: bool = True, asks: bool = True, small: bool = False, ahead: bool = False
    ) -> None:
        self.rounds = rounds
        self.asks = asks
        """A step begins when the lead permits it."""
        self.small = small
        """The model may stay leased at the servers while a worker computes."""
        self.ahead = ahead
        """A worker computes on while the answer to its last contribution is on its way."""

    def follow(self, job: m.JobSpec) -> None:
        """Apply what the job says."""
        traits = traits_of(job.sync)
        self.rounds = traits.rounds
        self.asks = traits.asks_before_steps
        self.ahead = job.read_ahead and not self.asks

    def attach(self, spec: m.ModelSpec) -> None:
        """Apply the size of the model."""
        self.small = nbytes_of(spec) <= _SMALL_NBYTES


class Pulls:
    """`ticket`: the last one of the incarnation before this one."""

    def __init__(self, post: WorkerOutbox, manner: ReadMode, ticket: int = 0) -> None:
        self._post = post
        self._manner = manner
        self.ticket = ticket
        self.landing = Assembly()
        self.resumed = NOTHING
        """The version that it went on with last."""
        self.allowed = False
        """Without rounds: the lead has let it begin a step."""
        self.must_pull = False
        self.stop = False
        """The job ends: what is read next is final."""
        self._released = NOTHING
        self._terms = m.Release()
        self._first = True
        self._pulling: dict[int, int] = {}
        """Per server, what it was asked for; only while it must be."""

    @property
    def reads_first(self) -> bool:
        """What it asked for with its last contribution is taken before the next one leaves."""
        return self._manner.ahead and self.landing.version != self.ticket

    def may_go_on(self) -> bool:
        landing = self.landing
        if not landing.whole:
            return False
        if self._manner.rounds:
            released = self._released > self.resumed or self.stop
            return released and landing.version >= self._released
        return (self.allowed or self.stop) and landing.version == self.ticket > 0

    def release(self, message: m.Release) -> None:
        self._terms = message
        self.stop = self.stop or message.stop
        if self._manner.rounds:
            if message.round > self._released:
                self._released = message.round
            if not message.pushed:
                self.must_pull = True
        else:
            self.allowed = True

    def resume(self) -> None:
        """It goes on with what is here."""
        manner, do = self._manner, self._post.do
        if self.must_pull:
            self.must_pull = False
            self._pulling.clear()
        self.resumed = self.landing.version
        do(Expect(None, self.ticket if manner.ahead else None))
        terms, first = self._terms, self._first
        self._first = False
        do(
            Resume(
                self.resumed,
                self.stop,
                terms.steps,
                terms.interval_ns,
                terms.probe,
                terms.points,
                anew=first,
            )
        )
        if not manner.rounds and not manner.small:
            self.say_pulled()

    # -- asking --------------------------------------------------------------------------------

    def expect(self, version: int | None, *, keep: int | None = None) -> None:
        self._post.do(Expect(version, keep))

    def take_ticket(self, *, awaited: bool = True) -> tuple[int, int]:
        """The number of the next answer, for a contribution that asks for it, and the last answer
        that was copied, where it is for the request to say. `awaited`: the worker waits for it."""
        self.ticket += 1
        if awaited:
            self.expect(self.ticket)
        return self.ticket, self.landing.version if self._manner.small else NOTHING

    def pull_after(self, sequence: int, *, awaited: bool = True) -> None:
        """Ask every server for its slices as soon as contribution `sequence`, which was sent before,
        is in them; the answers carry the ticket."""
        ticket, pulled = self.take_ticket(awaited=awaited)
        identity = self._post.identity()
        pull = m.Pull(**identity, round=ticket, sequence=sequence, pulled=pulled)
        for server in self.landing.slices:
            self._post.tell_server(server, pull)

    def pull_missing(self) -> None:
        """Ask every server that is behind for its slices; a server that has folded on meanwhile
        answers with a later version, and then the others are asked for that one. A server is asked
        again only when its answer has landed: a second one could land in what the first completed.
        Nobody is asked before the first release: by then every server knows this worker."""
        if not self.must_pull or self._released == NOTHING:
            return
        round_ = max(self._released, self.landing.newest)
        for server in self.landing.slices:
            version = self.landing.of(server)
            if version < round_ and self._pulling.get(server, NOTHING) <= version:
                self._pulling[server] = round_
                self._post.tell_server(server, m.Pull(**self._post.identity(), round=round_))

    def ask_anew(self) -> None:
        """Who answers now may not be the one who was asked."""
        self._pulling.clear()
        self.must_pull = self.must_pull or self._manner.rounds

    def say_pulled(self) -> None:
        pulled = m.Pulled(**self._post.identity(), round=self.landing.version)
        for server in self.landing.slices:
            self._post.tell_server(server, pulled)
