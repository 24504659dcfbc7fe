"""A run's state as tables for a terminal. `train` shows them live, and `status` prints them.

Estimates when a run will end: by its number of rounds, passes or points, or by its time limit,
whichever comes first.
"""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.table import Table
from rich.text import Text

from polyrhythm.core.devices import CPU
from polyrhythm.core.kinds import EXACT, OFF
from polyrhythm.core.lead.progress.learning import LearningState
from polyrhythm.core.values import shown
from polyrhythm.observe.learning import is_fault, learning_in_words
from polyrhythm.observe.moves import passes_in_words
from polyrhythm.observe.reasons import in_words, noticed_by, parting
from polyrhythm.observe.runs import Run
from polyrhythm.observe.state import RunState, ServerLoss
from polyrhythm.observe.summary import is_trained
from polyrhythm.observe.words import counted, duration, listed, measure, percent, wrapped
from polyrhythm.observe.work import ObservedWorker
from polyrhythm.wire.messages import JobSpec

_LOOK_BACK = 30
"""How many lines of the journal the estimate uses. These lines cover about half a minute."""


def left_s(state: RunState, job: JobSpec, now_s: float) -> float | None:
    """The seconds until the end of the run; None if there is no estimate yet. Targets of
    metrics are not included, because their time cannot be estimated."""
    if state.opened_s is None:
        return None
    ends = [
        end_s
        for end_s in (
            _by_rounds(state, job.rounds),
            _by_passes(state, job.epochs),
            _by_points(state, job.points),
            None if job.max_seconds is None else state.opened_s + job.max_seconds,
        )
        if end_s is not None
    ]
    return max(0.0, min(ends) - now_s) if ends else None


def _by_rounds(state: RunState, goal: int | None) -> float | None:
    first, last = state.curve[-_LOOK_BACK:][0], state.curve[-1]
    if goal is None or last.round <= first.round:
        return None
    per_round_s = (last.at_s - first.at_s) / (last.round - first.round)
    return last.at_s + per_round_s * (goal - last.round)


def _by_points(state: RunState, goal: int | None) -> float | None:
    first, last = state.curve[-_LOOK_BACK:][0], state.curve[-1]
    if goal is None or last.points <= first.points:
        return None
    per_point_s = (last.at_s - first.at_s) / (last.points - first.points)
    return last.at_s + per_point_s * max(0, goal - last.points)


def _by_passes(state: RunState, goal: int | None) -> float | None:
    """The seconds until this number of passes is done. The estimate assumes that later passes have
    as many points as the passes so far, and that the speed of the last lines stays the same."""
    first, last = state.curve[-_LOOK_BACK:][0], state.curve[-1]
    begun = next((point for point in state.curve if point.passes == last.passes), last)
    if goal is None or not last.passes or last.points <= first.points:
        return None
    per_point_s = (last.at_s - first.at_s) / (last.points - first.points)
    in_goal = goal * begun.points / begun.passes
    return last.at_s + per_point_s * max(0.0, in_goal - last.points)


_COLUMNS = (
    *("contributions", "per s", "points/s"),
    *("computing", "waiting", "transferring"),
)
_SHORT = (*("sent", "per s", "points/s"), *("comp.", "wait", "link"))
"""The titles of the live table: the same columns in less space."""
_SHORT_NAME = 11
"""The longest name of a worker in the live table; the rest of a longer name is cut."""
_LIVE_WIDTH = 60
"""The live table is never wider than this, so that its lines are not broken in a terminal that
becomes narrower. Broken lines would disturb the redrawing in place, which counts the lines of the
table."""
_SHOWN = 24
"""The most workers in a live table, so that it fits the screen."""


_METRICS = 2
"""The most metrics in a line about the progress of a run. `status` shows the others in a line of
their own."""


def headline(state: RunState, job: JobSpec | None, now_s: float) -> str:
    """The progress of the run in one line. If the job is given, the line has an estimate of the
    end."""
    if state.opened_s is None:
        servers = counted(len(state.servers), "server")
        return f"starting: {servers}, {counted(state.members, 'worker')}"
    parts = [f"round {state.round}"]
    if state.passes:
        parts.append(f"pass {state.passes}")
    if (objective := _objective(state)) is not None:
        parts.append(objective)
    parts += [f"{name} {measure(value)}" for name, value in foremost(state, job)]
    parts.append(f"{_points_per_s(state):.0f} points/s")
    parts.append(duration(max(0.0, now_s - state.opened_s)))
    rest_s = None if job is None else left_s(state, job, now_s)
    if rest_s is not None:
        parts.append(f"about {duration(rest_s)} left")
    return "  ".join(parts)


def foremost(state: RunState, job: JobSpec | None) -> list[tuple[str, float]]:
    """The metrics that fit a line: first the metrics of the job's targets, then the accuracy and
    others."""
    targets = [] if job is None else [target.metric for target in job.targets]
    first = [*targets, "accuracy"]
    order = {name: place for place, name in enumerate(dict.fromkeys(first))}
    values = sorted(state.metrics.values().items(), key=lambda each: order.get(each[0], len(order)))
    return values[:_METRICS]


def _objective(state: RunState) -> str | None:
    """The objective, with a remark if the job does not learn."""
    fault = state.finding.state if state.finding and is_fault(state.finding) else None
    if fault is LearningState.NOT_FINITE:
        return "objective not finite"
    if state.objective is None:
        return None
    return f"objective {state.objective:.4f}" + ("" if fault is None else f" ({fault})")


def _table(*titles: str) -> Table:
    """Make a table that fits 80 columns."""
    return Table(*titles, box=None, padding=(0, 1, 0, 0), pad_edge=False)


def _add_row(table: Table, *cells: str) -> None:
    """Add a row. Cells are not interpreted: a name that looks like markup or a control sequence is
    shown as it is."""
    table.add_row(*(Text(shown(cell)) for cell in cells))


def _points_per_s(state: RunState) -> float:
    """The present speed of all workers. If no worker is in the job, it is the mean speed of the
    whole run."""
    if state.present:
        return sum(worker.points_per_s for worker in state.present)
    return state.points / state.seconds if state.seconds else 0.0


def live(state: RunState, job: JobSpec | None, now_s: float) -> RenderableType:
    rows: list[RenderableType] = [_live_text(headline(state, job, now_s), "bold")]
    workers = state.present
    if workers:
        rows.append(workers_table(workers[:_SHOWN], state, short=True))
    if len(workers) > _SHOWN:
        rows.append(Text(f"and {len(workers) - _SHOWN} more workers", style="dim"))
    if is_fault(state.finding):
        rows.append(_live_text(learning_in_words(state) or "", "red"))
    if state.waiting is not None:
        text = in_words(state.waiting.reason, state.name_of)
        rows.append(_live_text(f"{text}, for {duration(now_s - state.waiting.since_s)}", "yellow"))
    return Constrain(Group(*rows), _LIVE_WIDTH)


def _live_text(text: str, style: str) -> Text:
    return Text(wrapped(shown(text), _LIVE_WIDTH), style=style)


def workers_table(
    workers: Iterable[ObservedWorker], state: RunState, *, short: bool = False
) -> Table:
    """The table of workers. Speeds and shares of time are those of the last seconds; contributions
    are counted from the beginning. `short`: use short titles, and cut long names."""
    shown = list(workers)
    clocks = any(worker.clock is not None for worker in shown)
    # the live table has little space, so it names devices only if some worker has a GPU
    devices = any(worker.device not in (("", CPU) if short else ("",)) for worker in shown)
    table = _table()
    most = _SHORT_NAME if short else None
    table.add_column("worker", no_wrap=short, max_width=most, overflow="ellipsis")
    if devices:
        table.add_column("device", no_wrap=True)
    for title in (*(("clock",) if clocks else ()), *(_SHORT if short else _COLUMNS)):
        table.add_column(title, justify="right", no_wrap=short)
    if not short:
        table.add_column("")
    for worker in shown:
        shares = worker.recent.shares or worker.totals.shares
        here = worker.present
        _add_row(
            table,
            worker.name,
            *((worker.device or "-",) if devices else ()),
            *(("-" if worker.clock is None else str(worker.clock),) if clocks else ()),
            str(worker.totals.contributions),
            f"{worker.contributions_per_s:.1f}" if here else "-",
            f"{worker.points_per_s:.0f}" if here else "-",
            *(map(percent, shares) if shares else ("-", "-", "-")),
            *(() if short else (_gone(worker, state),)),
        )
    return table


def _gone(worker: ObservedWorker, state: RunState) -> str:
    if worker.left is None:
        return ""
    return f"left at {worker.left_s:.1f} s: {parting(worker.left, state.name_of)}"


def status(run: Run) -> RenderableType:
    state, job = run.state, run.job
    what = f"{run.name}: {run.word}" + (f": {run.reason}" if run.reason else "")
    rows: list[RenderableType] = [Text(shown(what), style="bold")]
    if job is not None:
        outer = "" if job.outer == OFF else f", --outer {job.outer}"
        push = "" if job.push == EXACT else f", --push {job.push}"
        rows.append(Text(f"{job.name}, --sync {job.sync}, --kind {job.kind}{outer}{push}"))
    running = run.word == "running"
    rows.append(Text(headline(state, job if running else None, run.now_s)))
    if state.workers:
        rows.append(workers_table(state.workers.values(), state))
    rows += [Text(shown(text)) for text in passes_in_words(state)]
    if state.slices:
        slices = ", ".join(f"s{server} {count}" for server, count in state.slices.items())
        links = listed(sorted(set(state.links.values())))
        rows.append(Text(f"slices: {slices}; links: {links}"))
    if len(values := state.metrics.values()) > _METRICS:
        rows.append(Text(shown("reported: " + _values(values.items()))))
    if state.metrics.unreported is not None:
        rows.append(Text(shown(in_words(state.metrics.unreported))))
    if (learning := learning_in_words(state)) is not None:
        rows.append(Text(shown(learning)))
    if left_out := [w for w in state.workers.values() if w.totals.skipped]:
        counts = listed(f"{worker.totals.skipped} of {worker.name}" for worker in left_out)
        rows.append(Text(shown(f"left out because they were not finite: {counts}")))
    if left_out := [w for w in state.workers.values() if w.totals.without_step]:
        counts = listed(f"{worker.totals.without_step} of {worker.name}" for worker in left_out)
        rows.append(Text(shown(f"left out because no step was made: {counts}")))
    if state.silent:
        rows.append(Text(f"silent: {listed(f's{server}' for server in state.silent)}"))
    rows += [Text(shown(_failover(failover))) for failover in state.failovers]
    if state.learning:
        rows.append(Text(f"copies of slices that are being restored: {state.learning}"))
    trained = is_trained(state, job)
    rows += [Text(shown(text)) for text in _models(state, running=running, trained=trained)]
    if state.waiting is not None and running:
        text = in_words(state.waiting.reason, state.name_of)
        rows.append(Text(shown(f"{text}: ask 'polyrhythm why'")))
    rows += [Text(shown(text)) for text in _processes(state) if running]
    if state.listening is not None and running:
        rows.append(Text(shown(f"others may join: {state.join_hint.text()}")))
    return Group(*rows)


def _values(metrics: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {measure(value)}" for name, value in metrics)


def _processes(state: RunState) -> list[str]:
    """One line for each host: the ids of the processes there."""
    hosts: dict[str, list[str]] = {}
    for name, (pid, host) in state.processes.items():
        hosts.setdefault(host, []).append(f"{name} {pid}")
    return [f"processes on {host}: {', '.join(names)}" for host, names in hosts.items()]


def _models(state: RunState, *, running: bool, trained: bool) -> list[str]:
    """Lines about the files of the trained model."""
    rows = []
    if state.saving and running:
        rows.append("the job is over, and its model is being saved")
    if state.best is not None:
        best = state.best
        rows.append(f"best model: {best['path']} ({best['metric']} {measure(best['value'])})")
    if state.model is not None and trained:
        rows.append(f"model: {state.model}")
    if state.not_saved is not None:
        rows.append(f"the model is not saved: {in_words(state.not_saved)}")
    return rows


def _failover(failover: ServerLoss) -> str:
    noticed = noticed_by(failover.noticed)
    text = f"s{failover.server} was lost at {failover.at_s:.1f} s, noticed by {noticed}"
    if failover.promoted:
        moved = [f"{count} to {server}" for server, count in failover.promoted.items()]
        text += f"; slices moved: {listed(moved)}"
    if failover.seconds is None:
        return f"{text}; not every server has the new routes yet"
    return f"{text}, in {1000 * failover.seconds:.1f} ms"


def _word(run: Run) -> str:
    """The state of the run in words, and how many workers failed in it."""
    failed = len(run.failures)
    return run.word if not failed else f"{run.word}, {counted(failed, 'worker')} failed"


def runs(found: Iterable[Run]) -> Table:
    table = _table("run", "is", "job", "sync")
    for title in ("rounds", "objective", "seconds"):
        table.add_column(title, justify="right")
    table.add_column("reported")
    for run in found:
        state = run.state
        _add_row(
            table,
            run.name,
            _word(run),
            run.job.name if run.job is not None else "-",
            run.job.sync if run.job is not None else "-",
            str(state.round),
            "-" if state.objective is None else f"{state.objective:.4f}",
            f"{state.seconds:.1f}",
            _values(foremost(state, run.job)) or "-",
        )
    return table
