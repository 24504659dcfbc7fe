"""A run's state in lines for a terminal. `train` shows them live, and `status` prints them.

*They answer three questions at a glance: how long will it take, does the model learn, and who is
slow?* The first line has the time, the second the objective, and the table of workers marks the
slow ones.
"""

from collections.abc import Iterable
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from polyrhythm.core.kinds import EXACT, OFF
from polyrhythm.core.values import shown
from polyrhythm.observe.columns import aligned, cut, width
from polyrhythm.observe.estimate import Estimate, counts, estimate, open_end
from polyrhythm.observe.learning import (
    FALLING,
    is_fault,
    learning_in_short,
    learning_in_words,
    shape_of,
)
from polyrhythm.observe.moves import losses_in_words, moves_in_words
from polyrhythm.observe.reasons import in_words, noticed_by
from polyrhythm.observe.runs import Run
from polyrhythm.observe.state import RunState, ServerLoss
from polyrhythm.observe.summary import is_trained
from polyrhythm.observe.words import counted, duration, grouped, listed, measure, rough, wrapped
from polyrhythm.observe.workers import (
    RowStyle,
    gone_in_words,
    slow_in_words,
    slow_workers,
    table,
    worker_rows,
)
from polyrhythm.wire.messages import JobSpec

MOST_COLUMNS = 100
"""The live table is never wider than this."""
_LEAST_ROWS = 3
"""The fewest rows of workers in a live table, even in a low terminal."""
_ABOVE = 8
"""The lines of the terminal that the live table leaves for what is printed above it."""
_METRICS = 2
"""The most metrics in a line about the progress of a run. `status` shows the others in their own
line."""
_BAR_CELLS = 24
_LEAST_OF_RUN = 2
"""How many columns a list of runs keeps even in a very narrow terminal."""


def headline(state: RunState, job: JobSpec | None, now_s: float) -> str:
    """The progress of the run in one line, for output that is no terminal. If the job is given, the
    line has an estimate of the end."""
    if state.opened_s is None:
        return _starting(state, job)
    parts = [*counts(state, job), *_learning(state, job), _speed(state)]
    if (slow := slow_in_words(slow_workers(state))) is not None:
        parts.append(slow)
    if state.saving:
        parts.append(_saving_in_words(state))
    elif (found := estimate(state, job, now_s)) is not None:
        parts.append(found.in_words())
    return ", ".join(parts)


def _saving_in_words(state: RunState) -> str:
    if state.held is not None:
        return "the model cannot be written yet: see 'polyrhythm why'"
    return "the model is being saved"


def _starting(state: RunState, job: JobSpec | None) -> str:
    servers, workers = (None, None) if job is None else (job.servers, job.workers)
    ready = [
        f"{counted(here, noun)}" if of is None or here > of else f"{here} of {counted(of, noun)}"
        for here, of, noun in (
            (len(state.servers), servers, "server"),
            (state.members, workers, "worker"),
        )
    ]
    return f"starting: {listed(ready)} joined"


def _speed(state: RunState) -> str:
    """The present speed of all workers. If no worker is in the job, it is the mean speed of the whole
    run."""
    if state.present:
        return f"{grouped(sum(worker.points_per_s for worker in state.present))} points/s"
    return f"{grouped(state.points / state.seconds if state.seconds else 0.0)} points/s"


def _learning(state: RunState, job: JobSpec | None, shape: str = "") -> list[str]:
    """The objective, whether it falls, and the foremost metrics with their targets."""
    parts = []
    if state.objective is not None:
        verdict = learning_in_short(state)
        said = "" if verdict is None else f" ({verdict})"
        parts.append(f"objective {measure(state.objective)}{shape and ' '}{shape}{said}")
    elif state.finding is not None and is_fault(state.finding):
        parts.append(f"objective {learning_in_short(state)}")
    targets = {} if job is None else {target.metric: target for target in job.targets}
    for name, value in foremost(state, job):
        goal = f" (target {targets[name].value:g})" if name in targets else ""
        parts.append(f"{name} {measure(value)}{goal}")
    return parts


def foremost(state: RunState, job: JobSpec | None) -> list[tuple[str, float]]:
    """The metrics that fit a line: first the metrics of the job's targets, then the accuracy and
    others."""
    targets = [] if job is None else [target.metric for target in job.targets]
    first = [*targets, "accuracy"]
    order = {name: place for place, name in enumerate(dict.fromkeys(first))}
    values = sorted(state.metrics.values().items(), key=lambda each: order.get(each[0], len(order)))
    return values[:_METRICS]


# -- the live table ------------------------------------------------------------------------------


def live(
    state: RunState,
    job: JobSpec | None,
    now_s: float,
    *,
    columns: int = 80,
    lines: int = 24,
    plain: bool = False,
) -> RenderableType:
    """The live table, for a terminal of this size. `plain`: draw with ASCII characters only."""
    columns = min(columns, MOST_COLUMNS)
    if state.opened_s is None:
        above: list[RenderableType] = [_short_text(_starting(state, job), columns, "bold")]
    else:
        above = [
            _time(state, job, now_s, columns, plain=plain),
            _short_text(", ".join([*counts(state, job), _speed(state)]), columns),
        ]
        shape = "" if plain else shape_of(state.curve)
        if learning := ", ".join(_learning(state, job, shape)):
            above.append(_short_text(learning, columns, _style(state)))
    below: list[RenderableType] = []
    if is_fault(state.finding):
        below.append(_short_text(learning_in_words(state) or "", columns, "red"))
    if state.waiting is not None:
        below.append(_short_text(_wait(state, now_s), columns, "yellow"))
    rows = [] if state.opened_s is None else worker_rows(state)
    if rows:
        most = max(_LEAST_ROWS, lines - _ABOVE - len(above) - len(below) - 1)
        drawn = table(rows, columns, most)
        above += [_row(*line) for line in drawn]
    return Group(*above, *below)


def _row(line: str, mark: RowStyle | None) -> Text:
    return Text(line, style=mark.value if mark else "")


def _style(state: RunState) -> str:
    """The colour of the line about the objective. It shows whether the run learns."""
    if is_fault(state.finding):
        return "red"
    return "green" if learning_in_short(state) == FALLING else ""


def _time(
    state: RunState, job: JobSpec | None, now_s: float, columns: int, *, plain: bool
) -> RenderableType:
    """How long the run has taken and will still take, with a bar if the end can be estimated."""
    found = estimate(state, job, now_s)
    text = _times(state, job, now_s, found)
    if found is None or columns < _BAR_CELLS + len(text) + 2:
        return _short_text(text, columns, "bold")
    full = round(_BAR_CELLS * found.share)
    over, open_ = ("#", "-") if plain else ("━", "─")
    return Text.assemble(
        (over * full, "cyan"), (open_ * (_BAR_CELLS - full), "dim"), "  ", (text, "bold")
    )


def _times(state: RunState, job: JobSpec | None, now_s: float, found: Estimate | None) -> str:
    gone = rough(max(0.0, now_s - (state.opened_s or 0.0)))
    if state.saving:
        return f"{gone} so far, {_saving_in_words(state)}"
    if found is not None:
        return f"{found.share:3.0%}  {gone} so far, {found.in_words()}"
    end = None if job is None else open_end(job)
    return f"{gone} so far" if end is None else f"{gone} so far, {end}"


def _wait(state: RunState, now_s: float) -> str:
    waiting = state.waiting
    assert waiting is not None
    text = in_words(waiting.reason, state.name_of)
    text += f", for {rough(max(0.0, now_s - waiting.since_s))} so far"
    if waiting.until_s is None:
        return text
    return f"{text}, at most {rough(max(0.0, waiting.until_s - now_s))} more"


def _text(text: str, columns: int, style: str = "") -> Text:
    return Text(wrapped(shown(text), columns), style=style)


def _short_text(text: str, columns: int, style: str = "") -> Text:
    """The same lines for the live table, in which words that are longer than the terminal are
    cut."""
    lines = wrapped(shown(text), columns).split("\n")
    return Text("\n".join(cut(line, columns) for line in lines), style=style)


# -- the command `status` ------------------------------------------------------------------------


def status(run: Run, columns: int, *, plain: bool = False) -> RenderableType:
    """The state of a run, in lines of at most `columns` columns."""
    state, job = run.state, run.job
    running = run.word == "running"
    what = f"{run.name}: {run.described}"
    rows: list[RenderableType] = [_text(what, columns, "bold")]
    if job is not None:
        outer = "" if job.outer == OFF else f", --outer {job.outer}"
        push = "" if job.push == EXACT else f", --push {job.push}"
        settings = f"{job.name}, --sync {job.sync}, --kind {job.kind}{outer}{push}"
        rows.append(_text(settings, columns))
    if state.opened_s is None:
        rows += [_text(_starting(state, job), columns)] if running else []
    else:
        if running:
            rows.append(_time(state, job, run.now_s, columns, plain=plain))
        gone = [] if running else [duration(state.seconds)]
        rows.append(_text(", ".join([*gone, *counts(state, job), _speed(state)]), columns))
        shape = "" if plain else shape_of(state.curve)
        if learning := ", ".join(_learning(state, job, shape)):
            rows.append(_text(learning, columns, _style(state)))
    if state.opened_s is not None and (drawn := worker_rows(state)):
        rows += [_row(*line) for line in table(drawn, columns)]
    rows += [_text(text, columns) for text in _details(run, running=running)]
    return Group(*rows)


def _details(run: Run, *, running: bool) -> list[str]:
    """The additional lines of `status`."""
    state, job = run.state, run.job
    rows = [*moves_in_words(state)[:1], *losses_in_words(state)]
    if state.slices:
        slices = ", ".join(f"s{server} {count}" for server, count in state.slices.items())
        links = listed(sorted(set(state.links.values())))
        rows.append(f"slices: {slices}; links: {links}")
    if len(values := state.metrics.values()) > _METRICS:
        rows.append("reported: " + _values(values.items()))
    if state.metrics.unreported is not None:
        rows.append(in_words(state.metrics.unreported))
    if (learning := learning_in_words(state)) is not None:
        rows.append(learning)
    if left_out := [w for w in state.workers.values() if w.totals.skipped]:
        counts_ = listed(f"{worker.totals.skipped} of {worker.name}" for worker in left_out)
        rows.append(f"left out because they were not finite: {counts_}")
    if left_out := [w for w in state.workers.values() if w.totals.without_step]:
        counts_ = listed(f"{worker.totals.without_step} of {worker.name}" for worker in left_out)
        rows.append(f"left out because no step was made: {counts_}")
    rows += [f"gone: {text}" for text in gone_in_words(state.workers.values(), state)]
    if state.silent:
        silent = listed(f"s{server} (noticed at {at:.1f} s)" for server, at in state.silent.items())
        rows.append(f"no heartbeats come from {silent}: ask 'polyrhythm why'")
    rows += [_failover(failover) for failover in state.failovers]
    if state.learning:
        rows.append(f"copies of slices that are being restored: {state.learning}")
    rows += _models(run, running=running, trained=is_trained(state, job))
    if state.waiting is not None and running:
        text = in_words(state.waiting.reason, state.name_of)
        rows.append(f"{text}: ask 'polyrhythm why'")
    if running:
        rows += _processes(state)
        if state.listening is not None:
            rows.append(f"others may join: {state.join_hint.text()}")
    return rows


def _values(metrics: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {measure(value)}" for name, value in metrics)


def _processes(state: RunState) -> list[str]:
    """One line for each host: the ids of the processes there."""
    hosts: dict[str, list[str]] = {}
    for name, (pid, host) in state.processes.items():
        hosts.setdefault(host, []).append(f"{name} {pid}")
    return [f"processes on {host}: {', '.join(names)}" for host, names in hosts.items()]


def _models(run: Run, *, running: bool, trained: bool) -> list[str]:
    """Lines about the files of the trained model."""
    state, rows = run.state, []
    if state.saving and running:
        rows.append("the job is over, and its model is being saved")
    if state.best is not None:
        best = state.best
        path = run.path / Path(best["path"]).name
        rows.append(f"best model: {path} ({best['metric']} {measure(best['value'])})")
    if state.model is not None and trained:
        name = state.model if state.model_in_store else run.path / Path(state.model).name
        rows.append(f"model: {name}")
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


def runs(found: Iterable[Run], columns: int) -> list[str]:
    """One line for each run, in at most `columns` columns if the names of the runs are short
    enough. Columns that do not fit are dropped."""
    cells = [["run", "is", "rounds", "objective", "seconds", "job", "sync", "reported"]]
    for run in found:
        state = run.state
        cells.append(
            [
                shown(run.name),
                _word(run),
                grouped(state.round),
                "-" if state.objective is None else measure(state.objective),
                f"{state.seconds:.1f}",
                shown(run.job.name) if run.job is not None else "-",
                run.job.sync if run.job is not None else "-",
                shown(_values(foremost(state, run.job))) or "-",
            ]
        )
    fitting = [count for count in range(9) if width([row[:count] for row in cells]) <= columns]
    kept = max(_LEAST_OF_RUN, *fitting)
    if max(fitting) < _LEAST_OF_RUN:
        room = columns - width([["", *row[1:kept]] for row in cells])
        cells = [[cut(name, room), *rest] for name, *rest in cells]
    right = [False, False, True, True, True, False, False, False]
    return aligned([row[:kept] for row in cells], right[:kept])
