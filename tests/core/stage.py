"""A lead that a test drives by hand: events in, effects out."""

from typing import Any, TypeVar

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.lead.machine import LeadMachine
from polyrhythm.core.machine import Effect
from polyrhythm.observe.reasons import in_words
from polyrhythm.wire import messages as m

ADDRESS = m.Address("host", 1, "", "")
SECOND_NS = 10**9
Kind = TypeVar("Kind")


def spec(*shapes: tuple[int, ...], optimizer: str = "SGD") -> m.ModelSpec:
    return m.ModelSpec(
        tuple(
            m.TensorSpec(f"t{index}", shape, "float32", 0, (1,) * len(shape))
            for index, shape in enumerate(shapes or ((64,),))
        ),
        m.OptimizerSpec(optimizer, ({"lr": 0.1},)),
    )


class Stage:
    """Drives a lead. Every method sends an event and returns its effects."""

    def __init__(self, **job: Any) -> None:
        self.job = m.JobSpec(
            **{"job": "j", "timer": "off", "slice_nbytes": 64, "heartbeat_s": 1e6, **job}
        )
        self.lead = LeadMachine(self.job)
        self.now_ns = SECOND_NS
        self.incarnations: dict[int, int] = {}
        self.routing = 0
        for server in range(self.job.servers):
            self.server(server)

    def tell(self, event: Any) -> list[Effect]:
        self.now_ns += 1
        effects = list(self.lead.handle(event, self.now_ns))
        self.lead.check()
        for effect in effects:
            match effect:
                case fx.Send(_, m.Admitted() as admitted):
                    self.incarnations[admitted.worker] = admitted.incarnation
                case fx.Send(_, m.Place() as place):
                    self.routing = place.routing
        return effects

    def server(self, number: int, **fields: Any) -> list[Effect]:
        defaults = {"name": f"s{number}", "job": "j", "address": ADDRESS, "identity": ""}
        hello = m.ServerHello(server=number, **{**defaults, **fields})
        return self.tell(ev.ServerHelloReceived(f"link-s{number}", hello))

    def hello(self, name: str, **fields: Any) -> list[Effect]:
        hello = m.WorkerHello(**{"name": name, "job": "j", "identity": "", **fields})
        return self.tell(ev.WorkerHelloReceived(f"link-{name}", hello))

    def attach(self, worker: int, model: m.ModelSpec | None = None) -> list[Effect]:
        return self.tell(m.Attach(**self.who(worker), spec=model or spec((64,))))

    def who(self, worker: int) -> dict[str, int]:
        return {"worker": worker, "incarnation": self.incarnations[worker]}

    def from_servers(self, kind: type[m.Message], **fields: Any) -> list[Effect]:
        """Send this message from every server, in the current routing epoch. Returns the effects of
        the last message."""
        fields.setdefault("routing", self.routing)
        effects: list[Effect] = []
        for server in range(self.job.servers):
            effects = self.tell(kind(server=server, **fields))
        return effects

    def begin(self, workers: int | None = None) -> "Stage":
        """Let all workers join and attach and the slices be seeded, until round 1 is open."""
        for number in range(self.job.workers if workers is None else workers):
            self.hello(f"worker-{number}")
            self.attach(number)
        self.from_servers(m.Placed)
        self.from_servers(m.Seeded)
        self.folded(0)
        return self

    def contribute(
        self,
        worker: int,
        sequence: int,
        round_: int = 1,
        progress: tuple[m.ChunkProgress, ...] = (),
        lease: int = 0,
        **report: Any,
    ) -> list[Effect]:
        """Let a worker contribute, and the servers report it. `report`: more fields of the worker's
        report."""
        fields = {"weight": 2.0, "progress": progress, "lease": lease, **report}
        trailer = m.Trailer(
            **self.who(worker),
            sequence=sequence,
            report=m.ContributionReport(**fields),
        )
        self.tell(trailer)
        return self.from_servers(m.Arrived, **self.who(worker), sequence=sequence, round=round_)

    def folded(self, round_: int) -> list[Effect]:
        return self.from_servers(m.Folded, round=round_, weight=1.0)

    def closed(self, peer: str, reason: str = "it died") -> list[Effect]:
        return self.tell(ev.LinkClosed(peer, reason))

    def tick(self, after_s: float) -> list[Effect]:
        """Let time pass. The lead is woken whenever it has asked to be, and once more at the
        end."""
        end_ns, effects = self.now_ns + round(after_s * SECOND_NS), []
        while (wake_ns := self.lead.wake_at()) is not None and self.now_ns < wake_ns <= end_ns:
            self.now_ns = wake_ns - 1
            effects += self.tell(ev.Tick())
        self.now_ns = max(self.now_ns, end_ns)
        return effects + self.tell(ev.Tick())

    def sleep(self, for_s: float) -> list[Effect]:
        """Pause the lead for this time: it misses its wake-ups, and is woken once afterwards."""
        self.now_ns += round(for_s * SECOND_NS)
        return self.tell(ev.Tick())

    @property
    def why(self) -> str:
        return in_words(self.lead.why().reason)


def sent(effects: list[Effect], kind: type[Kind], to: str | None = None) -> list[Kind]:
    return [
        effect.message
        for effect in effects
        if isinstance(effect, fx.Send)
        and isinstance(effect.message, kind)
        and to in (None, effect.to)
    ]


def of(effects: list[Effect], kind: type[Kind]) -> list[Kind]:
    return [effect for effect in effects if isinstance(effect, kind)]
