"""A lead with honest members and servers, and one hostile peer that sends any message.

The honest peers answer the lead, so that rounds continue during the attack. The messages of the
hostile peer pass the same checks as in the runtime: the decoder must accept them, and they must
name this peer as their sender.
"""

import random
from collections import deque
from typing import Any

import msgspec

from polyrhythm.core import effects as fx
from polyrhythm.core import events as ev
from polyrhythm.core.lead.machine import LeadMachine
from polyrhythm.core.machine import Effect
from polyrhythm.core.names import server_number, worker_number
from polyrhythm.core.senders import is_to_lead, sender
from polyrhythm.wire import messages as m
from tests.hostile.inputs import Inputs

SECOND_NS = 10**9
SERVERS = 3
POINTS = 100
POLICIES: dict[str, dict[str, Any]] = {
    "bsp": {"sync": "bsp"},
    "bsp with a timer": {"sync": "bsp", "timer": "auto"},
    "bspb": {"sync": "bspb"},
    "bspv": {"sync": "bspv"},
    "psp": {"sync": "psp", "kind": "local"},
    "fsp": {"sync": "fsp"},
    "fsp, central": {"sync": "fsp", "coordination": "central", "abandon": "50ms"},
    "fsp, binary": {"sync": "fsp", "interval": "binary"},
    "fsp, fixed": {"sync": "fsp", "interval": "20ms"},
    "ssp": {"sync": "ssp:2"},
    "ssp-restart": {"sync": "ssp-restart:2"},
    "asp": {"sync": "asp"},
}
GOALS: tuple[dict[str, Any], ...] = (
    {"rounds": 10**9},
    {"epochs": 10**9, "targets": (m.Target("accuracy", 2e100, True),)},
    {"target_change": 1e-300, "targets": (m.Target("objective", -2e100, False),)},
)
SPEC = m.ModelSpec(
    (m.TensorSpec("weight", (8, 8), "float32", 0, (8, 1)),), m.OptimizerSpec("SGD", ({"lr": 0.1},))
)
ADDRESS = m.Address("host", 1, "", "")


class HostileLead:
    """A lead under attack. `role`: the role of the hostile peer: "stranger", "member", "server" or
    "operator"."""

    def __init__(self, rng: random.Random, role: str, policy: str) -> None:
        self.inputs, self.rng = Inputs(rng), rng
        self.role, self.policy = role, policy
        goal = rng.choice(GOALS)
        self.job = m.JobSpec(
            job="j", servers=SERVERS, workers=3, slice_nbytes=64, replicas=rng.choice((0, 1)),
            heartbeat_s=1e6, **{**POLICIES[policy], **goal},
        )  # fmt: skip
        self.lead = LeadMachine(self.job)
        self.now_ns = SECOND_NS
        self.ended = False
        self.counted = 0
        self.incarnations: dict[int, int] = {}
        self._names: dict[str, str] = {}
        self._sequences: dict[int, int] = {}
        self._due: deque[m.Message] = deque()
        self._held: set[int] = set()
        for server in range(SERVERS):
            hello = m.ServerHello(
                server=server, name=f"s{server}", job="j", address=ADDRESS, identity=""
            )
            self.tell(ev.ServerHelloReceived(f"link-s{server}", hello))
        for name in ("anna", "bert", "mallory"):
            self.hello(name)
        self.go_on(200)

    def hello(self, name: str) -> None:
        hello = m.WorkerHello(name=name, job="j", identity="")
        self.tell(ev.WorkerHelloReceived(f"link-{name}", hello))

    # -- the lead ------------------------------------------------------------------------------

    def tell(self, event: Any) -> None:
        self.now_ns += self.rng.choice((1, 10**5, 10**7))
        effects = self.lead.handle(event, self.now_ns)
        self.lead.check()
        self.lead.why()
        for effect in effects:
            self._perform(effect)
        wake_ns = self.lead.wake_at()
        if wake_ns is not None and wake_ns <= self.now_ns and not isinstance(event, ev.Tick):
            self.tell(ev.Tick())

    def _perform(self, effect: Effect) -> None:
        match effect:
            case fx.Send(to, message):
                m.DECODERS[m.EVENT_TYPES[type(message)]].decode(m.encode_head(message))
                self._answer(to, message)
            case fx.Note(what, fields):
                if what == "rounds":
                    self.counted += fields["contributions"]
            case fx.End():
                self.ended = True

    def _answer(self, to: str, message: m.Message) -> None:
        server, worker = server_number(to), worker_number(to)
        if isinstance(message, m.Place) and server is not None:
            self._held |= {server}
            routing = {"routing": message.routing, "server": server}
            rows = tuple(
                m.Row(member.worker, member.incarnation, self._sequences.get(member.worker, 0))
                for member in message.members
            )
            self._due.append(m.Placed(**routing, rows=rows))
            for route in message.routes:
                if route.primary == server:
                    self._due += [m.CaughtUp(**routing, peer=peer) for peer in route.learners]
        elif isinstance(message, m.Fold) and server is not None:
            self._due.append(
                m.Folded(server=server, round=message.round, weight=1.0, routing=message.routing)
            )
        elif worker is not None:
            self._answer_as_worker(worker, message)

    def _answer_as_worker(self, worker: int, message: m.Message) -> None:
        who = {"worker": worker, "incarnation": message.incarnation}
        match message:
            case m.Admitted():
                self.incarnations[worker] = message.incarnation
                self._sequences[worker] = 0
                self._due.append(m.Attach(**who, spec=SPEC))
                self._due.append(m.Enrol(**who, points=POINTS, batch=4))
            case m.Routing(seed=True):
                self._due += [
                    m.Seeded(server=server, routing=message.routing) for server in range(SERVERS)
                ]
            case m.Release(stop=False) | m.Pause():
                if worker != 2 or self.role != "member" or self.rng.random() < 0.7:
                    self._contribute(worker, message.round + 1)

    def _contribute(self, worker: int, round_: int) -> None:
        sequence = self._sequences[worker] = self._sequences.get(worker, 0) + 1
        who = {"worker": worker, "incarnation": self.incarnations[worker], "sequence": sequence}
        times = {
            "compute_ns": self.rng.randrange(10**7),
            "wait_ns": 10**5,
            "batch": 4,
            "micro_ns": 10**5,
        }
        self._due.append(
            m.Trailer(
                **who,
                report=m.ContributionReport(
                    weight=4.0, objective=1.0, probe=1.0, probe_points=8, probe_ns=10**5, **times
                ),
            )
        )
        self._due += [
            m.Arrived(**who, server=server, round=round_, routing=10**6)
            for server in range(SERVERS)
        ]

    def _arrive(self, trailer: m.Trailer) -> None:
        """Let the servers report that the slices of the hostile member's contribution have
        arrived."""
        if trailer.sequence > self._sequences.get(2, 0):
            self._sequences[2] = trailer.sequence
        who = {"worker": 2, "incarnation": trailer.incarnation, "sequence": trailer.sequence}
        reported = {**who, "round": max(1, trailer.round), "routing": 10**6}
        self._due += [m.Arrived(**reported, server=server) for server in range(SERVERS)]

    def go_on(self, messages: int) -> None:
        """Let the honest peers send this many messages."""
        for _ in range(messages):
            if not self._due or self.ended:
                break
            self.tell(self._due.popleft())

    # -- the hostile peer ----------------------------------------------------------------------

    def attack(self) -> tuple[bytes, type[m.Message]]:
        """Return the type and the head of a message of the hostile peer. Most messages name this
        peer as the sender."""
        rng, inputs = self.rng, self.inputs
        if self.role == "operator":
            stop = {"what": "stop"} if rng.random() < 0.2 else {}
            return m.encode_head(inputs.message(m.OperatorRequest, **stop)), m.OperatorRequest
        if self.role == "member":
            kinds = [kind for kind in _KINDS if sender(kind_of(kind, worker=2)) == "w2"]
        else:
            kinds = [kind for kind in _KINDS if sender(kind_of(kind, server=2)) == "s2"]
        kind = rng.choice(kinds)
        fields: dict[str, Any] = {}
        if rng.random() < 0.9:
            fields |= (
                {"worker": 2, "incarnation": self.incarnations.get(2, 0)}
                if self.role == "member"
                else {"server": 2}
            )
        if rng.random() < 0.7:
            known = self.lead.view.members()
            fields["sequence"] = self._sequences.get(2, 0) + rng.choice((0, 1, 1, 2))
            if self.role == "server" and known:
                member = rng.choice(known)
                fields |= {"worker": member.worker, "incarnation": member.incarnation, "server": 2}
        if rng.random() < 0.7:
            fields["routing"] = self.lead.parts.routing.epoch
        if kind is m.Trailer and rng.random() < 0.8:
            fields["weight"] = rng.choice((1.0, 4.0, 1e-300, float(2**53)))
            fields["progress"] = tuple(
                m.ChunkProgress(
                    chunk, rng.choice((0, 1, 1, 2, 10**6, 2**53)), rng.choice((0, 1, 2, 3, 2**53))
                )
                for chunk in rng.sample(range(60), rng.choice((0, 1, 20)))
            )
        return m.encode_head(inputs.message(kind, **fields)), kind

    def strike(self, head: bytes, kind: type[m.Message]) -> bool:
        """Pass a message to the lead as the runtime does. Return False if the checks of the runtime
        refuse it."""
        try:
            message = m.DECODERS[m.EVENT_TYPES[kind]].decode(head)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return False
        if isinstance(message, m.OperatorRequest):
            self._operate(message)
            return True
        me = "w2" if self.role == "member" else "s2"
        if sender(message) != me or not is_to_lead(message):
            return False
        self.tell(message)
        if isinstance(message, m.Trailer) and self.rng.random() < 0.8:
            self._arrive(message)
        if self.role == "member" and self.lead.view.at(2) is None and not self.ended:
            self.hello("mallory")
        return True

    def _operate(self, request: m.OperatorRequest) -> None:
        """Send a request over the link of an operator, in most cases after its hello."""
        link = f"operator-{self.rng.randrange(3)}"
        if self.rng.random() < 0.7:
            job = self.rng.choice(("j", "j", "", "another"))
            head = m.encode_head(self.inputs.message(m.OperatorHello, name="mallory", job=job))
            try:
                hello = m.DECODERS[m.EVENT_TYPES[m.OperatorHello]].decode(head)
            except msgspec.DecodeError:
                # the acceptor refuses this hello, so the lead gets neither the hello nor the
                # request
                return
            assert isinstance(hello, m.OperatorHello)
            self.tell(ev.OperatorHelloReceived(link, hello))
        self.tell(ev.OperatorRequested(link, request))
        if self.rng.random() < 0.5:
            self.tell(ev.LinkClosed(link, "it hung up"))


def kind_of(kind: type[m.Message], **fields: int) -> m.Message:
    return Inputs(random.Random(0)).message(kind, **fields)


_KINDS = (
    *(m.Attach, m.Enrol, m.Trailer, m.Trailer, m.Trailer, m.Abstained, m.Asking, m.Report, m.Leave),
    *(m.Alive, m.Placed, m.Seeded, m.Arrived, m.Folded, m.CaughtUp, m.Unreachable, m.RatesMeasured),
)
"""The message types that the lead accepts. Trailers are drawn more often, because they have the
most numbers."""
