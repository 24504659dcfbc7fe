"""Explains what a run waits for: which processes, since when, until when, by which rule, and what
to do about it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from polyrhythm.core.names import server_name, server_number
from polyrhythm.core.placement.schemes import AWARE, MEASURING
from polyrhythm.core.seat import FIRST_SEAT
from polyrhythm.observe.advice import COMPARE, accepts, less_waiting, local_steps, straggler
from polyrhythm.observe.learning import (
    learning_advice,
    learning_in_words,
    learning_remedies,
    needs_help,
)
from polyrhythm.observe.measured import awaited_link, busy_link
from polyrhythm.observe.reasons import in_words
from polyrhythm.observe.state import RunState, WaitingState
from polyrhythm.observe.watch import Suspect
from polyrhythm.observe.words import counted, duration, either, listed, percent
from polyrhythm.observe.work import ObservedWorker
from polyrhythm.observe.workers import gone_in_words, slow_in_words, slow_workers
from polyrhythm.wire.messages import JobSpec
from polyrhythm.wire.messages.reasons import Reason

RULES = {
    "servers": "workers are admitted when every server of the job has joined",
    "joining": "a worker begins when the lead has admitted it",
    "placing": "training begins when every server has allocated its slices",
    "seeding": "training begins from the parameters of the first worker",
    "gathering": "round 1 opens when --workers members are present, or after --start-timeout with fewer",
    "no-workers": "a job of 'polyrhythm serve' waits for workers until it is stopped",
    "round": "bsp folds a round when every member has contributed or abstained, or when the timer"
    " fires",
    "waiting": "bsp folds a round when every member has contributed or abstained, or when the timer"
    " fires",
    "stale": "ssp lets a worker begin a step while its clock is at most N ahead of the slowest clock",
    "restarting": "a worker stops when it is N steps ahead of the slowest worker; when all workers have"
    " stopped, their clocks restart",
    "waits": "a worker continues after the fold",
    "folding": "a round is over when every server that holds slices has folded",
    "sharing": "with --optimizer-on workers, a worker sends the parameters for a checkpoint, for a saved"
    " model and for a worker that joins; the next round is folded after that",
    "unreported": "a contribution counts when every server that holds slices has received its part",
    "window": "a worker has at most two contributions that are not acknowledged",
    "ending": "a job ends when every worker has left; a worker leaves when its `main` returns",
    "stopping": "a job that is stopped ends when every worker has run the code after its loop",
    "link-silent": "a worker whose link to a server is silent is excluded after 4 s; a server"
    " that most workers cannot reach is lost instead, if its slices have copies",
    "links-cut": "workers that are excluded connect again every few seconds, and go on when their"
    " links"
    " work",
    "servers-apart": "a server that has the only copy of a slice is not given up: the job waits for the"
    " link",
    "failover": "replicas of a dead server's slices become primaries;"
    " workers continue when every server follows the new routes",
    "resending": "workers send again what a dead server had added but not folded; then the round is"
    " folded",
    "collecting": "every primary sends its parameters to the lead's process, which writes the model",
    "saving": "a job ends when its model is on the disk",
    "model-held": "the lead tries every 5 s to write the model to the folder of the run, or to the"
    " job's store",
    "rerouting": "slices are used again when every server that copies them is linked",
    "copying": "a step counts when every replica has made it too",
    "parted": "a worker that loses a server waits 5 s for new routes, and then joins again",
    "timer-empty": "a round without any contribution is not folded",
    "given-up": "with --respawn a process that dies is started again, unless it died five times in a"
    " row within 10 s of its start",
}
_REMEDIES = {
    "placing": ("look for a server that is short of memory or stopped",),
    "seeding": (
        "check that this worker still runs: it must send the initial parameters of the whole model",
    ),
    "gathering": (
        "start the missing workers: {worker}",
        "wait: at the start timeout, training begins with the workers that are present",
        "next time give a shorter --start-timeout or fewer --workers",
    ),
    "attaching": ("wait: the workers import their code and load their data",),
    "no-workers": ("start a worker: {worker}", "end the job: polyrhythm stop RUN"),
    "round": ("if that worker hangs, end it: the others go on without it",),
    "folding": ("look for a server that is stopped or short of memory: all others wait for it",),
    "unreported": ("look for a server that is stopped, short of memory, or behind a slow link",),
    "sharing": ("make checkpoints less often if the network is slow",),
    "ending": ("wait, or let `main` do less after its loop",),
    "stopping": ("wait, or end the job at once: polyrhythm stop RUN --now",),
    "collecting": (
        "look for a server that is stopped: after a minute without progress the model is given up",
    ),
    "saving": ("wait for the disk; a second Ctrl-C ends the job without its model",),
    "model-held": (
        "make room on the disk: the model is then saved, and the job ends",
        "give the model up: polyrhythm stop RUN",
    ),
    "servers": ("start the missing servers: {server}",),
    "starting": ("wait: the command of the job is starting them",),
    "failover": (
        "look for a second server that is stopped: all others wait until the lead removes it",
    ),
    "resending": ("look at those workers: a worker that is stopped will be evicted",),
    "copying": ("look for a server that is stopped, short of memory, or behind a slow link",),
}
_CHECK_LINK = (
    "check the network between these two hosts (ping, firewall, routes): both can reach the host"
    " of the lead",
)
_REMEDIES |= dict.fromkeys(("link-silent", "links-cut", "servers-apart"), _CHECK_LINK)
_SILENCE_S = 3.0
_RECENT_S = 1.5
"""The journal usually counts rounds once a second. If its last count is older than this, the answer
gives the age."""
_NO_WAIT = "waiting for nothing"


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a run waits for. Moments are times on the clock of the journal. `waited_s` is how long the
    wait has lasted, and `left_s` how long it can still last."""

    what: str
    missing: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    """The workers that wait."""
    since_s: float | None = None
    waited_s: float | None = None
    until_s: float | None = None
    left_s: float | None = None
    rule: str | None = None
    remedies: tuple[str, ...] = ()
    cut_off: tuple[str, ...] = ()
    """Workers that are excluded because their links to servers do not work, and since when."""
    evicted: tuple[str, ...] = ()
    """Workers that were evicted for silence, since when, and the consequences."""
    given_up: tuple[str, ...] = ()
    """Processes that are not started again, and why."""
    cluster: tuple[str, ...] = ()
    """Deaths of processes and nodes of a cluster, and nodes that will be removed. An entry stays
    until its processes have joined again."""
    gone: tuple[str, ...] = ()
    """The workers that failed, died or left before they were done, and why."""
    slow: str | None = None
    """The worker that computes more slowly than the others."""
    lately: str | None = None
    """The worker for which the others have waited in the last seconds, and the share of this time
    that they waited."""
    link: str | None = None
    """The slow link: the job waits for it now, or most of the time. With its rate."""
    learning: str | None = None
    """What is wrong with the learning, if anything is."""
    advice: str | None = None
    """What to try first if something is wrong with the learning. After the end of a run: whatever
    would help."""
    alternatives: tuple[str, ...] = ()
    """What else to try if something is wrong with the learning."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def explain(state: RunState, now_s: float | None = None, job: JobSpec | None = None) -> Explanation:
    """What a run that has not ended waits for. `now_s`: the present time on the clock of the
    journal."""
    explanation = _with_straggler(_explain(state, now_s, job), state, job)
    explanation = replace(explanation, slow=slow_in_words(slow_workers(state)))
    explanation = _with_link(explanation, state, job)
    explanation = _with_cut_off(explanation, state, now_s)
    if state.members:
        explanation = replace(explanation, evicted=_evicted(state, now_s))
        explanation = _with_gone(explanation, state)
    explanation = with_given_up(with_cluster(explanation, state), state)
    return with_learning(explanation, state, job)


def _with_gone(explanation: Explanation, state: RunState) -> Explanation:
    """The same explanation, with the workers that will not come back, and how to replace them."""
    silent = {worker.worker for worker in _silent_workers(state)}
    others = [worker for worker in state.workers.values() if worker.worker not in silent]
    gone = gone_in_words(others, state)
    if not gone:
        return explanation
    again = f"start another worker in its place: {state.join_hint.text()}"
    return replace(explanation, gone=tuple(gone), remedies=(*explanation.remedies, again))


def _with_cut_off(explanation: Explanation, state: RunState, now_s: float | None) -> Explanation:
    """The same explanation, with the pairs of processes that cannot reach each other."""
    now_s = max(state.at_s, state.at_s if now_s is None else now_s)
    cut_off = tuple(
        f"{state.name_of(worker)} and {server_name(server)} have not reached each other for"
        f" {duration(now_s - since_s)}: {state.name_of(worker)} is excluded until their link works"
        for (worker, server), since_s in sorted(state.cut_off.items())
    )
    if not cut_off or state.ended is not None:
        return explanation
    remedies = explanation.remedies
    if not set(_CHECK_LINK) & set(remedies):
        remedies += _CHECK_LINK
    return replace(explanation, cut_off=cut_off, remedies=remedies)


def _with_straggler(explanation: Explanation, state: RunState, job: JobSpec | None) -> Explanation:
    """The same explanation, with the worker that has slowed down the last rounds. Most waits in a
    round are too short for a separate line in the journal."""
    found = None if job is None or not state.present else straggler(state, job)
    if found is None:
        return explanation
    name, share, remedy = found
    seconds_s = max(worker.recent_s for worker in state.present)
    lately = f"in the last {duration(seconds_s)} the others waited {percent(share)} of the time for"
    what, remedies = explanation.what, explanation.remedies or (remedy,)
    if state.waiting is None:
        what = what.replace(_NO_WAIT, f"{name} slows the others down")
    return replace(explanation, what=what, lately=f"{lately} {name}", remedies=remedies)


def _with_link(explanation: Explanation, state: RunState, job: JobSpec | None) -> Explanation:
    """The same explanation, with the link that the job waits for, if there is one."""
    waiting = state.waiting
    if waiting is not None and waiting.reason.code == "unreported":
        link = awaited_link(state, waiting.held, waiting.reason.fields.get("servers"))
        return replace(explanation, link=link)
    link = None if waiting is not None or job is None else busy_link(state, job)
    if link is None or job is None:
        return explanation
    what = explanation.what.replace(_NO_WAIT, "links slow the rounds down")
    remedies = explanation.remedies
    if job.servers > 1 and job.placement not in MEASURING and accepts(job, placement=AWARE):
        remedies += ("let slices follow the rates of links: next time give --placement aware",)
    if job.wire_dtype == "same" and accepts(job, wire_dtype="bf16"):
        remedies += (f"send half as many bytes: try --wire-dtype bf16, and {COMPARE}",)
    return replace(explanation, what=what, link=link, remedies=remedies)


def with_learning(explanation: Explanation, state: RunState, job: JobSpec | None) -> Explanation:
    """The same explanation with a remark if the run does not learn."""
    if not needs_help(state.finding):
        return explanation
    return replace(
        explanation,
        learning=learning_in_words(state),
        advice=learning_advice(state, job),
        alternatives=tuple(learning_remedies(state, job)[1:]),
    )


def with_cluster(explanation: Explanation, state: RunState) -> Explanation:
    """The same explanation with what has happened to the cluster of the job."""
    lines = dict.fromkeys(in_words(reason) for reason in state.gone.values())
    return replace(explanation, cluster=tuple(lines))


def with_given_up(explanation: Explanation, state: RunState) -> Explanation:
    """The same explanation with the processes that died too often to be started again."""
    lines = state.given_up.values()
    given_up = tuple(in_words(Reason("given-up", line)) for line in lines)
    if not given_up:
        return explanation
    roles = {"worker" if server_number(name) is None else "server" for name in state.given_up}
    again = tuple(
        f"start the missing {role} by hand: {state.join_hint.text(role)}" for role in sorted(roles)
    )
    return replace(explanation, given_up=given_up, remedies=(*explanation.remedies, *again))


def _explain(state: RunState, now_s: float | None, job: JobSpec | None) -> Explanation:
    waiting = state.waiting
    now_s = max(state.at_s, state.at_s if now_s is None else now_s)
    if (silent := _all_silent(state, now_s)) is not None:
        return silent
    if waiting is None:
        gathering = None if job is None or state.opened_s is not None else _gathering(state, job)
        return gathering or Explanation(_at_work(state, now_s))
    return Explanation(
        what=in_words(waiting.reason, state.name_of),
        missing=(*map(state.name_of, waiting.missing), *_servers(waiting)),
        held=tuple(state.name_of(worker) for worker in _held(state, waiting)),
        since_s=waiting.since_s,
        waited_s=now_s - waiting.since_s,
        until_s=waiting.until_s,
        left_s=None if waiting.until_s is None else max(0.0, waiting.until_s - now_s),
        rule=RULES.get(waiting.reason.code),
        remedies=(
            *_options(waiting.reason.code, waiting.until_s is not None, job),
            *_remedies(_code_of(waiting, state, job), state),
        ),
    )


def _code_of(waiting: WaitingState, state: RunState, job: JobSpec | None) -> str:
    """The code of the reason of a wait. If all workers have joined but have not attached a model,
    the job waits for that, and not for others to join."""
    code = waiting.reason.code
    if code == "gathering" and job is not None and state.members >= job.workers:
        return "attaching"
    return code


def _silent_workers(state: RunState) -> list[ObservedWorker]:
    """The workers that were evicted for silence and have not come back."""
    workers = state.workers.values()
    return [each for each in workers if each.left is not None and each.left.code == "silent-for"]


def _evicted(state: RunState, now_s: float | None) -> tuple[str, ...]:
    """Which workers were evicted while others go on, when, and what happens when they wake up."""
    at_s = state.at_s if now_s is None else max(state.at_s, now_s)
    return tuple(
        f"{worker.name}, {duration(at_s - (worker.left_s or 0.0))} ago, at {worker.left_s:.1f} s,"
        f" because {in_words(worker.left)}; the others visit its data, and it rejoins by itself when it"
        " wakes up"
        for worker in _silent_workers(state)
        if worker.left is not None
    )


def _all_silent(state: RunState, now_s: float) -> Explanation | None:
    """If every worker was evicted for silence: which ones, since when, and the consequences. None
    if a worker is in the job, or none was evicted."""
    silent = _silent_workers(state)
    if state.members or not silent or state.ended is not None:
        return None
    since_s = {
        worker.name: (worker.left_s or 0.0) - float(str(worker.left.fields["silent_s"]))
        for worker in silent
        if worker.left is not None
    }
    each = listed(f"{name} (for {duration(now_s - at_s)})" for name, at_s in since_s.items())
    first_s = min(since_s.values())
    return Explanation(
        what=f"every worker is silent and was evicted: {each}",
        missing=tuple(since_s),
        since_s=first_s,
        waited_s=now_s - first_s,
        rule="an evicted worker that wakes up rejoins by itself, and training continues; if the"
        " links of all of them end and none returns within 5 s, the job ends as failed",
        remedies=(
            "look at the processes of these workers: if they are stopped, let them continue (kill"
            " -CONT)",
            f"start another worker: {state.join_hint.text()}",
            "end the job: polyrhythm stop RUN",
        ),
    )


def explain_silent_lead(suspects: tuple[Suspect, ...], now_s: float, unix_s: float) -> Explanation:
    """Explain a silent lead by the reports of workers and servers. `unix_s`: the present as Unix
    time. `now_s`: the present on the clock of the journal."""
    first = suspects[0]
    silent_s = unix_s - first.since_unix_s
    return Explanation(
        what=f"the lead, in server {FIRST_SEAT.name}, has sent nothing for {duration(silent_s)}",
        missing=(f"the lead ({FIRST_SEAT.name})",),
        held=tuple(suspect.name for suspect in suspects),
        since_s=now_s - silent_s,
        waited_s=silent_s,
        until_s=now_s + first.until_unix_s - unix_s,
        left_s=max(0.0, first.until_unix_s - unix_s),
        rule=f"a silent lead is suspect after {first.limit}; workers and servers end when it"
        " has sent nothing for --lead-timeout",
        remedies=(
            f"look at the process of {FIRST_SEAT.name}: if it is stopped, let it continue (kill"
            f" -CONT)",
            "next time give a longer --lead-timeout if the lead's machine pauses that long",
        ),
    )


def _gathering(state: RunState, job: JobSpec) -> Explanation | None:
    """What a run waits for before the lead has reported a wait: servers or workers that have not
    joined."""
    missing = tuple(f"s{n}" for n in range(job.servers) if n not in state.servers)
    if not state.servers or (not missing and state.members):
        return None
    code = "servers" if missing else "gathering"
    elsewhere = [
        name for name in missing if (server_number(name) or 0) >= state.join_hint.local_servers
    ]
    what = (
        f"waiting for {listed(missing)}: {len(state.servers)} of {job.servers} servers have joined"
        if missing
        else f"waiting for workers: none of {job.workers} has joined yet"
    )
    remedies = _remedies("starting" if missing and not elsewhere else code, state)
    return Explanation(what, missing=missing, rule=RULES[code], remedies=remedies)


def _remedies(code: str, state: RunState) -> tuple[str, ...]:
    worker, server = state.join_hint.text("worker"), state.join_hint.text("server")
    return tuple(text.format(worker=worker, server=server) for text in _REMEDIES.get(code, ()))


def _options(code: str, timed: bool, job: JobSpec | None) -> tuple[str, ...]:
    """Options that make such a wait shorter, if the job accepts them. `timed`: whether a timer limits
    the wait."""
    if job is None:
        return ()
    if code == "round":
        timer = "wait for the timer, or next time set it" if timed else "next time set a timer"
        timers = (f"{timer}: --timer 30s",) if accepts(job, timer="30s") else ()
        return (
            *timers,
            f"let the others wait less: try {either(less_waiting(job))}, and {COMPARE}",
        )
    if code in ("stale", "restarting"):
        tries = either(less_waiting(job))
        return (f"let fast workers run further ahead: try {tries}, and {COMPARE}",)
    if code == "window":
        fewer = [steps] if (steps := local_steps(job)) is not None else []
        return (f"the servers are too slow: use {either(['more --servers', *fewer])}",)
    return ()


def _servers(waiting: WaitingState) -> tuple[str, ...]:
    """The names of the servers that the job waits for."""
    servers = waiting.reason.fields.get("servers")
    return tuple(map(server_name, servers)) if isinstance(servers, list) else ()


def _held(state: RunState, waiting: WaitingState) -> tuple[int, ...]:
    """The waiting workers: those that the lead names, or else all that are not missing."""
    if waiting.held or not (waiting.missing or _servers(waiting)):
        return waiting.held
    return tuple(w.worker for w in state.present if w.worker not in waiting.missing)


def _at_work(state: RunState, now_s: float) -> str:
    cut_off = {worker for worker, _ in state.cut_off} & {each.worker for each in state.present}
    workers = counted(state.members - len(cut_off), "worker")
    if state.opened_s is None:
        return f"round 1 has not opened yet; {workers} joined so far"
    if now_s > state.at_s + _SILENCE_S:
        silence = duration(now_s - state.at_s)
        return (
            f"no contribution has arrived for {silence} after round {state.round};"
            f" {workers} in the job"
        )
    age_s = now_s - state.at_s
    ago = f" ({duration(age_s)} ago)" if age_s > _RECENT_S else ""
    present = [worker for worker in state.present if worker.worker not in cut_off]
    resting = [worker.name for worker in present if worker.no_points]
    starting = [worker.name for worker in present if worker.starting and not worker.no_points]
    busy = counted(len(present) - len(resting) - len(starting), "worker")
    said = [f"{_NO_WAIT}: round {state.round}{ago}, {busy} at work"]
    if starting:
        have = "has" if len(starting) == 1 else "have"
        said.append(f"{listed(starting)} {have} joined, and {have} not contributed yet")
    if resting:
        rest = "rests" if len(resting) == 1 else "rest"
        said.append(f"{listed(resting)} {rest}: there are too few points for all workers")
    return "; ".join(said)


def in_sentences(explanation: Explanation) -> list[str]:
    said = [explanation.what]
    if explanation.missing:
        said.append(f"missing: {listed(explanation.missing)}")
    if explanation.held:
        said.append(f"waiting: {listed(explanation.held)}")
    if explanation.waited_s is not None:
        said.append(f"since: {duration(explanation.waited_s)} ago, at {explanation.since_s:.1f} s")
        if explanation.left_s is None:
            arrives = "it arrives" if len(explanation.missing) < 2 else "they arrive"
            said.append(f"until: {arrives}; no timer limits this wait")
        else:
            said.append(
                f"until: in {duration(explanation.left_s)} at the latest,"
                f" at {explanation.until_s:.1f} s"
            )
    if explanation.rule is not None:
        said.append(f"rule: {explanation.rule}")
    said += [f"cluster: {text}" for text in explanation.cluster]
    said += [f"gone: {text}" for text in explanation.gone]
    if explanation.slow is not None:
        said.append(f"slow: {explanation.slow}")
    if explanation.lately is not None:
        said.append(f"lately: {explanation.lately}")
    if explanation.link is not None:
        said.append(f"link: {explanation.link}")
    said += [f"cut off: {text}" for text in explanation.cut_off]
    said += [f"evicted: {text}" for text in explanation.evicted]
    if explanation.given_up:
        said += [f"given up: {text}" for text in explanation.given_up]
        said.append(f"rule: {RULES['given-up']}")
    said += _choices(explanation.remedies)
    if explanation.learning is not None:
        said.append(f"learning: {explanation.learning}")
    if explanation.advice is not None:
        tries = [f"try {remedy}" for remedy in explanation.alternatives]
        said += _choices((explanation.advice, *tries))
    return said


def _choices(remedies: Sequence[str]) -> list[str]:
    return [f"{'or' if at else 'you can'}: {remedy}" for at, remedy in enumerate(remedies)]
