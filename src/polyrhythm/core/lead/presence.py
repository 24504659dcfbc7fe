"""Who is in the job: members are admitted, heard of, evicted for their silence, and gone.

*The end of a link is death at once; suspicion exists only for silence. One who was evicted may wake,
and is told to rejoin.*
"""

from polyrhythm.core.effects import Bind, Drop, worker_name
from polyrhythm.core.lead.members import Member, View
from polyrhythm.core.lead.outbox import LeadOutbox
from polyrhythm.core.lead.removals import Removals
from polyrhythm.core.liveness import Suspicion
from polyrhythm.core.machine import Reason
from polyrhythm.wire import messages as m


class Members:
    def __init__(
        self, job: m.JobSpec, view: View, departures: Removals, dispatch: LeadOutbox
    ) -> None:
        self._job = job
        self._view = view
        self._departures = departures
        self._dispatch = dispatch
        self.suspicion = Suspicion(job.heartbeat_s)

    def accepts(self, worker: int, incarnation: int) -> bool:
        """What this one sent counts: it is a member, or not all servers know yet that it left."""
        if self._view.get(worker, incarnation) is not None:
            return True
        return self._departures.pending(worker, incarnation)

    def admit(self, link: str, name: str, servers: tuple[m.ServerSpec, ...], now_ns: int) -> None:
        again = self._view.known(name)
        member = self._view.admit(name, now_ns)
        self._departures.came(member.worker)
        self.suspicion.expect(member.worker, now_ns)
        self._dispatch.do(Bind(link, worker_name(member.worker), member.incarnation))
        self._dispatch.introduce(member)  # before the worker can dial the servers
        identity = self._dispatch.identity(member)
        self._dispatch.tell(member, m.Admitted(**identity, job=self._job, servers=servers))
        what = "rejoined" if again else "joined"
        self._dispatch.note(what, worker=member.worker, name=name, epoch=self._view.epoch)

    def remove(self, member: Member, reason: str) -> None:
        self._view.remove(member.worker)
        self.suspicion.forget(member.worker)
        self._dispatch.note("left", worker=member.worker, name=member.name, reason=reason)

    # -- signs of life -------------------------------------------------------------------------

    def beat(self, worker: int, now_ns: int) -> None:
        self.suspicion.beat(worker, now_ns)

    def spoke(self, worker: int, now_ns: int) -> None:
        self.suspicion.spoke(worker, now_ns)

    def silent(self, now_ns: int) -> list[int]:
        return self.suspicion.silent(now_ns)

    def evict(self, worker: int, now_ns: int) -> Member | None:
        """One who is silent is told; it is still to be removed, if it is a member."""
        member = self._view.at(worker)
        if member is None:
            return None
        pulse = self.suspicion.pulse(worker)
        silent_s = (now_ns - pulse.heard_ns) / 1e9
        fields = {"name": member.name, "silent_s": silent_s, "derivation": pulse.derivation()}
        limit_s = pulse.limit_ns() / 1e9
        self._dispatch.note("evicted", worker=worker, limit_s=limit_s, **fields)
        evicted = m.Evicted(**self._dispatch.identity(member), reason=str(Reason("silent", fields)))
        self._dispatch.tell(member, evicted)
        self._departures.falls_asleep(*member.key, now_ns)
        return member

    def dismiss(self, worker: int, incarnation: int) -> None:
        """It was evicted and has not woken: free its links. The order to rejoin has reached its machine,
        and it reads that before it notices the end of the link."""
        self._dispatch.tell_servers(self._dispatch.dismissed(worker, incarnation))
        self._dispatch.do(Drop(worker_name(worker), "it was evicted, and has not woken"))
