"""Tells a run in sentences with times. The same journal always gives the same story.

Unusual events appear at once. Routine events (rounds, reports) are summarised in one sentence
before the next unusual event, and every ten seconds. A wait appears when it has lasted three
seconds, and appears again only after a different wait.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from polyrhythm.core.lead.progress.learning import LearningState
from polyrhythm.observe import moves
from polyrhythm.observe.learning import ended_in_words, learning_in_words, learning_remedies
from polyrhythm.observe.reasons import (
    CUT_OFF,
    LINK_ENDED,
    in_words,
    limit_derivation,
    noticed_by,
    parting,
)
from polyrhythm.observe.state import RunState, reason_of
from polyrhythm.observe.words import counted, duration, listed, measure, number, percent, size
from polyrhythm.observe.work import Totals
from polyrhythm.wire.messages import JobSpec
from polyrhythm.wire.messages.reasons import DONE, FAILED, NOT_FINITE, Reason

NO_WORKERS: frozenset[int] = frozenset()


class Sentence(msgspec.Struct, frozen=True):
    """A sentence of a run's story, with its time and the workers that it concerns."""

    at_s: float
    text: str
    about: frozenset[int] | None = None
    """The workers that the sentence concerns; None: all workers."""
    routine: bool = False
    own: bool = False
    """Whether the sentence appears only in the story of one worker, and not in the story of the
    run."""
    shown: bool = False
    """Whether the command that runs the job has already shown the sentence."""
    urgent: bool = False
    """Whether the sentence is shown while the job runs, even with `--quiet`."""

    def __str__(self) -> str:
        return f"{self.at_s:6.1f} s  {self.text}"

    def concerns(self, worker: int | None) -> bool:
        """Whether the sentence belongs to the story of this worker. None: to the story of the
        run."""
        if worker is None:
            return not self.own
        return self.about is None or worker in self.about


_STORE_FAILS = "cut-unwritten"


class CheckpointTeller:
    """Turns lines of the journal about checkpoints into sentences.

    *The story says once that a store fails, and once that it works again. The journal has every
    failure.*
    """

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._unwritten = 0
        """How many checkpoints could not be written since the last successful one."""

    def made(self, line: dict[str, Any]) -> list[Sentence]:
        made = f"checkpoint {line['number']} of round {line['round']} is made"
        said = self._say(f"{made}: {size(line['nbytes'])} in {line['seconds']:.1f} s")
        unwritten, self._unwritten = self._unwritten, 0
        if not unwritten:
            return [replace(said, routine=True)]
        missing = f"{counted(unwritten, 'checkpoint')} that {'was' if unwritten == 1 else 'were'}"
        again = f"the store works again, after {missing} not made"
        return [replace(said, text=f"{said.text}; {again}", urgent=True)]

    def failed(self, line: dict[str, Any]) -> list[Sentence]:
        if line["reason"] == _STORE_FAILS:
            self._unwritten += 1
            if self._unwritten > 1:
                return []
        why = self._why(line)
        said = self._say(f"checkpoint {line['number']} is not made: {why}; training goes on")
        return [replace(said, urgent=True)]

    def made_without_state(self, line: dict[str, Any]) -> list[Sentence]:
        made = f"checkpoint {line['number']} is made without the state of worker.keep"
        return [replace(self._say(f"{made}: {self._why(line)}"), urgent=True)]

    def not_pruned(self, line: dict[str, Any]) -> list[Sentence]:
        said = self._say(f"older checkpoints are not deleted: {self._why(line)}")
        return [replace(said, urgent=True)]

    def resumed(self, line: dict[str, Any]) -> list[Sentence]:
        text = f"the job resumes from checkpoint {line['number']}, after round {line['round']}"
        return [self._say(text)]

    def _why(self, line: dict[str, Any]) -> str:
        return in_words(reason_of(line), self._state.name_of)

    def _say(self, text: str) -> Sentence:
        return Sentence(self._state.at_s, text, NO_WORKERS)


_ROUTINE_EVERY_S = 10.0
_LONG_WAIT_S = 3.0
_FEW = 8
_MOST_SHOWN = 10
"""The most workers whose joining the progress display mentions."""
_VERBS = {LINK_ENDED: "died", CUT_OFF: "is excluded"}
"""For some codes of a reason, what happened to the worker. Under any other code it has left."""
_ABOUT_THE_JOB = ("goal", "goal-not-finite")
"""The codes of reasons for the end of a job whose sentences already begin with "the job"."""
_UP_OR_DOWN = (LearningState.RISING, LearningState.FALLING)


_TUNING = frozenset(
    (
        *("interval-started", "interval-measuring", "interval-chosen", "interval-stage-over"),
        *("interval-raised", "interval-bounded", "interval-lowered", "interval-restored"),
        *("plan", "batch-measuring", "batch-chosen"),
    )
)
"""The codes of decisions that a policy repeats while it searches or adapts to the speeds of
workers."""
_ERRORS = (FAILED, NOT_FINITE)
"""The codes of reasons that contain the error of a worker."""


class Teller:
    """Reads the lines of a journal one by one and returns the sentences that are due. With the job,
    the sentences include advice."""

    def __init__(
        self,
        job: JobSpec | None = None,
        *,
        routine: bool = True,
        local: frozenset[str] = frozenset(),
    ) -> None:
        """`routine`: also summarise regularly what each worker has done. With thousands of workers
        these sentences take long to make. `local`: workers whose errors the command itself shows,
        so the sentences do not repeat them."""
        self.state = RunState()
        self._local = local
        self._says_routine = routine
        self._checkpoints = CheckpointTeller(self.state)
        self._job = job
        self._reports: dict[int, Sentence] = {}
        self._from_round = 1
        self._rounds_s: float | None = None
        self._told_s = 0.0
        self._told: dict[int, Totals] = {}
        self._told_wait: tuple[str, tuple[int, ...]] | None = None
        self._told_settled = False
        self._told_in: dict[int, int | None] = {}
        self._told_unopened: set[tuple[int, int]] = set()
        self._missing: tuple[int, ...] = ()
        """The workers that the job waited for before the current line."""

    def take(self, line: dict[str, Any]) -> list[Sentence]:
        self._missing = self.state.waiting.missing if self.state.waiting is not None else ()
        self.state.take(line)
        handler = self._HANDLERS.get(line.get("what", ""))
        told = [] if handler is None else handler(self, line)
        if not self._says_routine:
            return told
        due = bool(told) or self.state.at_s >= self._told_s + _ROUTINE_EVERY_S
        return [*self._routine(), *told] if due else []

    def rest(self) -> list[Sentence]:
        """The sentences about routine events that were not returned yet."""
        return self._routine()

    # -- routine -------------------------------------------------------------------------------

    def _routine(self) -> list[Sentence]:
        said = [*self._reports.values()]
        self._reports = {}
        self._told_s = self.state.at_s
        if self._rounds_s is not None and self.state.round >= self._from_round:
            said = [*self._rounds_said(self._rounds_s), *said]
        self._rounds_s = None
        return sorted(said, key=lambda sentence: sentence.at_s)

    def _rounds_said(self, at_s: float) -> Iterator[Sentence]:
        state = self.state
        first, last = self._from_round, state.round
        span = f"round {last} is" if first == last else f"rounds {first} to {last} are"
        passes = f", pass {state.passes}" if state.passes else ""
        objective = "" if state.objective is None else f", objective {measure(state.objective)}"
        yield Sentence(at_s, f"{span} folded{passes}{objective}", NO_WORKERS, routine=True)
        for worker in state.workers.values():
            done = worker.totals.since(self._told.get(worker.worker, Totals()))
            if not done.contributions:
                continue
            self._told[worker.worker] = worker.totals
            text = (
                f"{worker.name} made {counted(done.contributions, 'contribution')}"
                f" of {counted(done.points, 'point')}"
            )
            if done.shares is not None:
                compute, wait, transfer = (percent(share) for share in done.shares)
                text += f": computing {compute}, waiting {wait}, transferring {transfer}"
            yield Sentence(at_s, text, frozenset({worker.worker}), routine=True, own=True)
        self._from_round = last + 1

    # -- unusual events ------------------------------------------------------------------------

    def _say(self, text: str, about: Iterable[int] | None) -> Sentence:
        workers = None if about is None else frozenset(about)
        return Sentence(self.state.at_s, text, workers)

    def _of_many(self) -> bool:
        """Whether the job has so many workers that the display of progress does not mention each
        worker that joins or is done. `polyrhythm story` mentions them all."""
        return not self._says_routine and len(self.state.workers) > _MOST_SHOWN

    def _present(self) -> str:
        return counted(self.state.members, "worker")

    def _go_on(self) -> str:
        count = self.state.members
        if not count:
            return "; no worker is left"
        return f"; {count} {'goes' if count == 1 else 'go'} on without it"

    def _server_joined(self, line: dict[str, Any]) -> list[Sentence]:
        learns = "" if self.state.opened_s is None else "; it fetches the slices that it will hold"
        if learns and line.get("slices") == 0:
            learns = "; it gets no slice, because the model has too few"
        return [self._say(f"server s{line['server']} has joined{learns}", ())]

    def _draining(self, line: dict[str, Any]) -> list[Sentence]:
        by = f"{line['by']} asks" if line["by"] else "it asks"
        slices, move = counted(line["slices"], "slice"), "moves" if line["slices"] == 1 else "move"
        text = f"s{line['server']} is drained, because {by} for it"
        return [self._say(f"{text}: {slices} of it {move} to other servers", ())]

    def _drained(self, line: dict[str, Any]) -> list[Sentence]:
        left = counted(line["left"], "server")
        return [
            self._say(f"s{line['server']} holds no slice any more and has left; {left} now", ())
        ]

    def _server_lost(self, line: dict[str, Any]) -> list[Sentence]:
        noticed = reason_of(line)
        text = f"server s{line['server']} is lost, noticed by {noticed_by(noticed)}"
        text += f" ({in_words(noticed)})"
        if "left" in line:
            text += f"; the job goes on with {line['left']} of {line['servers']} servers"
        return [replace(self._say(text, None), urgent=True)]

    def _rerouting(self, line: dict[str, Any]) -> list[Sentence]:
        promoted = line.get("promoted", {})
        if not promoted:
            return []
        moves = [
            f"{server} becomes the primary of {counted(count, 'slice')}"
            for server, count in promoted.items()
        ]
        return [self._say(listed(moves), None)]

    def _rerouted(self, line: dict[str, Any]) -> list[Sentence]:
        took_ms = 1000 * line.get("seconds", 0.0)
        return [self._say(f"every server follows the new routes, after {took_ms:.1f} ms", None)]

    def _reassigned(self, line: dict[str, Any]) -> list[Sentence]:
        slices, mb = counted(line["slices"], "slice"), line["nbytes"] / 1e6
        text = (
            f"{slices} will move to other servers ({mb:.1f} MB, {line['moving_s']:.2f} s), because a"
            f" round takes longest on {line['slowest']}: --placement {line['scheme']} expects"
            f" {line['then_s']:.3f} s for the transfers of a round, and not {line['now_s']:.3f} s"
            f" ({line['gain']:.0%} less)"
        )
        return [self._say(text, ())]

    def _copied(self, line: dict[str, Any]) -> list[Sentence]:
        rest = line.get("learning", 0)
        more = "; every slice has its copies" if not rest else f"; {rest} to come"
        slices = counted(line["slices"], "slice")
        text = f"s{line['replica']} has a copy of {slices} of s{line['primary']}{more}"
        return [self._say(text, ())]

    def _cannot_be_done_without(self, line: dict[str, Any]) -> list[Sentence]:
        (said,) = self._silent(line)
        waits = "no other server has copies of its slices, so the job waits for it"
        return [self._say(f"{said.text}; {waits}", ())]

    def _server_left(self, line: dict[str, Any]) -> list[Sentence]:
        return [self._say(f"server s{line['server']} has left; another may take its place", ())]

    def _listening(self, line: dict[str, Any]) -> list[Sentence]:
        said = self._say(f"others may join: {self.state.join_hint.text()}", ())
        # a command that waits for workers of other machines has shown how they join
        invited = self._job is not None and len(self._local) < self._job.workers
        return [replace(said, shown=invited)]

    def _silent(self, line: dict[str, Any]) -> list[Sentence]:
        silent_s = line.get("silent_s")
        long = "" if silent_s is None else f" for {silent_s:.1f} s"
        return [self._say(f"server s{line['server']} has been silent{long}", ())]

    def _heard(self, line: dict[str, Any]) -> list[Sentence]:
        return [self._say(f"server s{line['server']} sends heartbeats again", ())]

    def _placed(self, line: dict[str, Any]) -> list[Sentence]:
        holds = [f"s{server} holds {count}" for server, count in self.state.slices.items()]
        slices = counted(sum(self.state.slices.values()), "slice")
        most = line.get("slice_nbytes")
        if most is not None and sum(self.state.slices.values()) > 1:
            slices += f" of at most {size(most)}"
        text = f"the model of {size(line['nbytes'])} lies in {slices}: {listed(holds)}"
        return [self._say(text, ())]

    def _came(self, line: dict[str, Any]) -> list[Sentence]:
        worker = self.state.workers[line["worker"]]
        back = worker.worker in self._told_in
        if back and self._told_in[worker.worker] == worker.incarnation:
            return []  # one sentence for the `joined` and the `rejoined` line of an incarnation
        self._told_in[worker.worker] = worker.incarnation
        if servers := self.state.cut_off_from(worker.worker):
            text = f"{worker.name} comes back when its link to {listed(servers)} works"
            return [self._say(text, {worker.worker})]
        how = f"is back, as incarnation {worker.incarnation}" if back else "joined"
        said = self._say(f"{worker.name} {how}; {self._present()} now", {worker.worker})
        return [replace(said, routine=not back and self._of_many())]

    def _left(self, line: dict[str, Any]) -> list[Sentence]:
        name, reason = line["name"], reason_of(line)
        known = self.state.workers.get(line["worker"])
        if known is not None and known.left != reason:
            # an earlier line has already told this worker's end
            return []
        if reason.code == DONE.code:
            return [replace(self._say(f"{name} is done", {line["worker"]}), routine=True)]
        else:
            verb = _VERBS.get(reason.code, "left")
            why = parting(reason, self.state.name_of)
            refused = reason.fields.get("name") == name
            told = refused and (name in self._local or reason.code == "too-late")
            if told or (name in self._local and reason.code in _ERRORS):
                why = "it was refused" if refused else "it failed"
            text = f"{name} {verb}: {why}{self._go_on()}"
        return [self._say(text, {line["worker"]})]

    def _unopened(self, line: dict[str, Any]) -> list[Sentence]:
        pair = line["worker"], line["server"]
        if pair in self._told_unopened:
            return []
        self._told_unopened.add(pair)
        text = f"{line['name']} cannot connect to s{line['server']}, and tries again"
        return [self._say(f"{text}: {line['detail']}", {line["worker"]})]

    def _link_works(self, line: dict[str, Any]) -> list[Sentence]:
        self._told_unopened.discard((line["worker"], line["server"]))
        name, server = line["name"], f"s{line['server']}"
        long = duration(line["seconds"])
        text = f"{name} and {server} can reach each other again, after {long}: {name} is back"
        return [self._say(text, {line["worker"]})]

    def _evicted(self, line: dict[str, Any]) -> list[Sentence]:
        text = (
            f"{line['name']} was evicted: silent for {line['silent_s']:.1f} s, the limit is"
            f" {line['limit_s']:.1f} s ({limit_derivation(line)}){self._go_on()}"
        )
        return [self._say(text, {line["worker"]})]

    def _rounds(self, line: dict[str, Any]) -> list[Sentence]:
        if len(self.state.curve) == 1:
            opened = f"round {line['round'] + 1} opened with {self._present()}"
            return [self._say(opened, None)]
        self._rounds_s = self.state.at_s
        if line.get("reason") != "timer":
            return []
        missing = tuple(line.get("missing") or ()) or self._missing
        names = listed(self.state.name_of(worker) for worker in missing)
        without = f"closed without {names}" if missing else "closed without waiting for all workers"
        return [self._say(f"the timer fired: round {line['round']} {without}", missing)]

    def _policy(self, line: dict[str, Any]) -> list[Sentence]:
        reason = reason_of(line)
        said = self._say(in_words(reason, self.state.name_of), None)
        return [replace(said, routine=reason.code in _TUNING)]

    def _waiting(self, line: dict[str, Any]) -> list[Sentence]:
        waiting = self.state.waiting
        if waiting is None or waiting.seen_s - waiting.since_s < _LONG_WAIT_S:
            return []
        kind = (waiting.reason.code, waiting.missing)
        if kind == self._told_wait:
            return []
        self._told_wait = kind
        text = in_words(waiting.reason, self.state.name_of)
        long = f" for {waiting.seen_s - waiting.since_s:.1f} s so far"
        until = "" if waiting.until_s is None else f", until {waiting.until_s:.1f} s at the latest"
        return [self._say(f"{text},{long}{until}", waiting.missing)]

    def _reported(self, line: dict[str, Any]) -> list[Sentence]:
        metrics = ", ".join(f"{name} {number(value)}" for name, value in line["metrics"].items())
        about = frozenset({line["worker"]})
        text = f"{line['name']} reports {metrics}"
        self._reports[line["worker"]] = Sentence(self.state.at_s, text, about, routine=True)
        return []

    def _evaluator(self, line: dict[str, Any]) -> list[Sentence]:
        reason = reason_of(line)
        if reason.code == "lowest-number":
            return []
        return [self._say(f"{line['name']} evaluates from now on: {in_words(reason)}", None)]

    def _no_points(self, line: dict[str, Any]) -> list[Sentence]:
        text = f"{line['name']} has no points to visit: there are too few for all workers; it rests"
        return [self._say(text, {line["worker"]})]

    def _skipped(self, line: dict[str, Any]) -> list[Sentence]:
        detail = (line.get("fields") or {}).get("detail", "it is not finite").partition(";")[0]
        said = f"a contribution of {line['name']} is left out: {detail}"
        so_far = f"; {line['count']} of its contributions were left out so far"
        more = "" if line["count"] == 1 else so_far
        return [self._say(said + more, {line["worker"]})]

    def _chunks(self, line: dict[str, Any]) -> list[Sentence]:
        said = self._say(*moves.begun(line, self.state.name_of))
        return [replace(said, routine=line.get("reason") == "balance-pass")]

    def _moves(self, line: dict[str, Any], words: Callable[..., str]) -> list[Sentence]:
        return [self._say(words(line, self.state.name_of), [line["worker"], line["target"]])]

    def _away(self, line: dict[str, Any]) -> list[Sentence]:
        away = f"the lead was paused for {line['seconds']:.1f} s"
        return [self._say(f"{away}: no process is suspected for that time", None)]

    def _stopping(self, line: dict[str, Any]) -> list[Sentence]:
        """The sentence about the stop of the job. The command that trains prints it too, so the
        progress display does not repeat it."""
        by = f" by {line['by']}" if "by" in line else ""
        said = self._say(f"a stop was requested{by}: every worker leaves its training loop", None)
        return [replace(said, shown=True)]

    def _refused(self, line: dict[str, Any]) -> list[Sentence]:
        reason = reason_of(line)
        said = self._say(in_words(reason, self.state.name_of), ())
        return [replace(said, shown=reason.fields.get("name") in self._local)]

    def _respawn(self, line: dict[str, Any]) -> list[Sentence]:
        """The sentence about the death of a process: the command that trains starts it again, or
        gives it up."""
        said = self._say(in_words(Reason(line["what"], line)), self._numbers(line))
        return [replace(said, shown=True)]

    def _respawned(self, line: dict[str, Any]) -> list[Sentence]:
        said = self._say(f"{line['name']} was started again", self._numbers(line))
        return [replace(said, shown=True)]

    def _cluster(self, line: dict[str, Any]) -> list[Sentence]:
        """The sentence about an observation of the cluster on which the command that trains runs
        the job."""
        said = self._say(in_words(Reason(line["what"], line)), None)
        return [replace(said, shown=True)]

    def _numbers(self, line: dict[str, Any]) -> list[int]:
        """A list with the number of the worker that a line names; empty if the line names a
        server."""
        workers = self.state.workers.values()
        return [worker.worker for worker in workers if worker.name == line["name"]]

    def _learning(self, line: dict[str, Any]) -> list[Sentence]:
        said = learning_in_words(self.state)
        if said is None:
            return []
        if line["state"] == LearningState.SETTLED:
            if self._told_settled:
                # mention only once that the objective is stable
                return []
            self._told_settled = True
        tries = [] if self._job is None else learning_remedies(self.state, self._job)
        text = f"{said}; try {tries[0]}" if tries else said
        # an objective that rises and falls again and again is noise; few lines of a terminal are
        # enough
        finding = self.state.finding
        rises = 0
        if finding is not None and finding.state in _UP_OR_DOWN:
            rises = finding.rises
        return [replace(self._say(text, None), routine=rises & (rises - 1) != 0)]

    def _ended(self, line: dict[str, Any]) -> list[Sentence]:
        reason = ended_in_words(self.state) or ""
        if reason_of(line).code not in _ABOUT_THE_JOB:
            reason = f"the job {'failed' if line.get('failed') else 'ended'}: {reason}"
        said = self._say(reason, None)
        # the error at the end of the command says why the job failed
        return [replace(said, shown=line.get("failed", False)), *self._in_all()]

    def _unwritten(self, line: dict[str, Any]) -> list[Sentence]:
        text = (
            f"{line['detail']}: training goes on, and the journal is held in memory until it can be"
            " written; until then status, why and story are out of date, and output of workers may be"
            " lost"
        )
        return [Sentence(self.state.at_s, text, NO_WORKERS, urgent=True)]

    def _written_again(self, line: dict[str, Any]) -> list[Sentence]:
        missing = line["missing"]
        text = f"the journal is written again, after {duration(line['seconds'])}" + (
            f"; {counted(missing, 'line')} of that time {'is' if missing == 1 else 'are'} missing"
            if missing
            else ""
        )
        return [Sentence(self.state.at_s, text, NO_WORKERS, urgent=True)]

    def _saved(self, line: dict[str, Any]) -> list[Sentence]:
        if not self.state.contributions:
            return []  # no model was trained
        where = line["path"] if line.get("store") else Path(line["path"]).name
        text = f"the model is saved, in {duration(line['seconds'])}: {where}"
        urgent = self.state.held is not None
        return [replace(self._say(text, None), urgent=urgent)]

    def _model_held(self, line: dict[str, Any]) -> list[Sentence]:
        text = (
            f"{in_words(reason_of(line))}; saving is tried every few seconds: make room, or give the"
            " model up with Ctrl-C or 'polyrhythm stop'"
        )
        return [replace(self._say(text, None), urgent=True)]

    def _best(self, line: dict[str, Any]) -> list[Sentence]:
        best = f"{line['metric']} {measure(line['value'])}"
        text = f"the best model so far is kept: {best}, round {line['round']}"
        return [Sentence(self.state.at_s, text, None, routine=True)]

    def _best_not_saved(self, line: dict[str, Any]) -> list[Sentence]:
        return [self._say(f"the best model is not kept: {in_words(reason_of(line))}", None)]

    def _not_saved(self, line: dict[str, Any]) -> list[Sentence]:
        return [self._say(f"the trained model is not saved: {in_words(reason_of(line))}", None)]

    def _in_all(self) -> list[Sentence]:
        """The sentence about how much each worker contributed in total, if there are few
        workers."""
        gave = [worker for worker in self.state.workers.values() if worker.totals.contributions]
        if not gave or len(gave) > _FEW:
            return []
        counts = listed(
            f"{worker.totals.contributions} of {worker.name}"
            + ("" if worker.totals.shares is None else f" ({percent(worker.totals.shares[0])})")
            for worker in gave
        )
        text = f"contributions of each worker, and the share of its time spent computing: {counts}"
        return [Sentence(self.state.at_s, text, NO_WORKERS, shown=True)]

    _HANDLERS: ClassVar[dict[str, Callable[["Teller", dict[str, Any]], list[Sentence]]]] = {
        "server-joined": _server_joined,
        "server-left": _server_left,
        "draining": _draining,
        "drained": _drained,
        "listening": _listening,
        "silent": _silent,
        "server-silent": _cannot_be_done_without,
        "server-heard": _heard,
        "server-lost": _server_lost,
        "reassigned": _reassigned,
        "rerouting": _rerouting,
        "rerouted": _rerouted,
        "copied": _copied,
        "placed": _placed,
        "joined": _came,
        "rejoined": _came,
        "left": _left,
        "evicted": _evicted,
        "unopened": _unopened,
        "link-works": _link_works,
        "lead-paused": _away,
        "stopping": _stopping,
        "overtime": lambda teller, line: [replace(teller._policy(line)[0], urgent=True)],
        "checkpoint": lambda teller, line: teller._checkpoints.made(line),
        "checkpoint-failed": lambda teller, line: teller._checkpoints.failed(line),
        "state-missing": lambda teller, line: teller._checkpoints.made_without_state(line),
        "checkpoints-kept": lambda teller, line: teller._checkpoints.not_pruned(line),
        "resumed": lambda teller, line: teller._checkpoints.resumed(line),
        "rounds": _rounds,
        "policy": _policy,
        "waiting": _waiting,
        "reported": _reported,
        "evaluator": _evaluator,
        "unreported": _policy,
        "chunks": _chunks,
        "points-moved": lambda teller, line: teller._moves(line, moves.moved),
        "points-kept": lambda teller, line: teller._moves(line, moves.kept),
        "data-set": _policy,
        "migration": _policy,
        "m-steps": _policy,
        "no-points": _no_points,
        "skipped": _skipped,
        "refused": _refused,
        "learning": _learning,
        "respawn": _respawn,
        "given-up": _respawn,
        "respawned": _respawned,
        "actor-died": _cluster,
        "node-lost": _cluster,
        "node-drains": _cluster,
        "node-drains-lead": _cluster,
        "node-drains-lead-cut": _cluster,
        "unwritten": _unwritten,
        "written-again": _written_again,
        "saved": _saved,
        "model-held": _model_held,
        "best": _best,
        "best-not-saved": _best_not_saved,
        "not-saved": _not_saved,
        "ended": _ended,
    }


def sentences(lines: Iterable[dict[str, Any]]) -> Iterator[Sentence]:
    teller = Teller()
    for line in lines:
        yield from teller.take(line)
    yield from teller.rest()


def tell(lines: Iterable[dict[str, Any]], worker: int | None = None) -> Iterator[str]:
    """The story of a run, or of one worker in it."""
    for sentence in sentences(lines):
        if sentence.concerns(worker):
            yield str(sentence)
