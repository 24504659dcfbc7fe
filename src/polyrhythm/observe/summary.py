"""The result of a run, made from its state alone: the JSON of `--json`, and the text that a user
reads at the end."""

import math
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from polyrhythm.core.kinds import EXACT, OFF
from polyrhythm.core.link_kinds import find_link_kind
from polyrhythm.core.metrics import OBJECTIVE
from polyrhythm.core.model import file_of, models_of
from polyrhythm.core.sync.barrier.prediction import overall_usage
from polyrhythm.core.values import name_order
from polyrhythm.observe.learning import ended_in_words, learning_result
from polyrhythm.observe.moves import last_move, losses_in_words, moves_in_words
from polyrhythm.observe.output import LOGS
from polyrhythm.observe.reasons import few, in_words, noticed_by
from polyrhythm.observe.state import RunState, ServerLoss, fold
from polyrhythm.observe.words import duration, grouped, listed, measure, percent, size
from polyrhythm.observe.work import ObservedWorker
from polyrhythm.observe.workers import RowStyle, WorkerRow, left_in_short, table, times_slower
from polyrhythm.wire.messages import JobSpec

_WIRE_SHARE = {"same": 1.0, "bf16": 0.5}
_MOST_ROWS = 10
"""The most rows about workers in a summary without details."""


def described(job: JobSpec) -> dict[str, Any]:
    """The main settings of a job."""
    return {
        "job": job.name,
        "sync": job.sync,
        "kind": job.kind,
        **({} if job.outer == OFF else {"outer": job.outer}),
        **({} if job.push == EXACT else {"push": job.push}),
        "workers": job.workers,
        "servers": job.servers,
    }


def summarise(lines: Iterable[dict[str, Any]], job: JobSpec | None = None) -> dict[str, Any]:
    """The result that `--json` prints, from the lines of a journal."""
    return result(fold(lines), job or JobSpec(job=""))


def result(state: RunState, job: JobSpec) -> dict[str, Any]:
    """The result that `--json` prints, from a state. `bytes_pushed` is the size of all
    contributions. Workers measure it if contributions differ from the whole model (`--push int8`,
    sparse gradients, several models, buffers). `bytes_pulled` is computed: a worker reads the model
    once when it joins and once after each contribution. With `--wire-dtype bf16`, a model of
    float32 travels at half its size."""
    seconds = state.seconds
    carried = state.nbytes * _WIRE_SHARE.get(job.wire_dtype, 1.0)
    return {
        "link": "+".join(sorted(set(state.links.values()))) or "none",
        "rounds": state.round,
        "resumed_round": state.resumed_round,
        "contributions": state.contributions,
        "points": state.points,
        "passes": state.passes,
        "objective": state.objective,
        "accuracy": state.accuracy,
        "metrics": state.metrics.values(),
        "learning": learning_result(state, job),
        "seconds": round(seconds, 6),
        "seconds_per_pass": round(seconds / state.passes, 6) if state.passes else None,
        "seconds_to_target": seconds_to_target(state, job),
        "points_per_s": _per_s(state.points, seconds),
        "contributions_per_s": _per_s(state.contributions, seconds),
        "bytes_pushed": state.pushed.nbytes(state.contributions, carried),
        "bytes_pulled": round(state.pulls * carried),
        "time": _time(state),
        "resource_usage": {"per_round": state.usage, "overall": _overall(state)},
        "abandoned_rounds": state.abandoned,
        "moved_points": state.moved_points,
        "moved_chunks": state.moved_chunks,
        "last_move": last_move(state),
        "lost_points": dict(state.lost_points),
        "held_versions": state.held_versions,
        "moves": moves_in_words(state),
        "losses": losses_in_words(state),
        "arrival_spread_ms": arrival_spread_ms(state),
        "per_worker": {worker.name: _of_worker(worker, state) for worker in state.workers.values()},
        "folds": {f"s{server}": count for server, count in state.folds.items()},
        "servers_left": len(state.servers),
        "servers_lost": [_loss(failover) for failover in state.failovers],
        "model": state.model,
        "model_in_store": state.model_in_store,
        "trained": is_trained(state, job),
        "best_model": None if state.best is None else _best(state.best),
        "no_best_model": _no_best(state, job),
        "not_saved": None if state.not_saved is None else in_words(state.not_saved),
        "ended": ended_in_words(state),
    }


def is_trained(state: RunState, job: JobSpec | None) -> bool:
    """Whether the saved model may differ from the initial one, or the user wanted the initial
    one. A job that continues from a checkpoint begins with a trained model."""
    ended = state.ended
    reached = ended is not None and not ended.failed
    return bool(state.contributions or reached or (job is not None and job.resume))


def _loss(failover: ServerLoss) -> dict[str, Any]:
    return {
        "server": f"s{failover.server}",
        "at_s": failover.at_s,
        "noticed": noticed_by(failover.noticed),
        "detail": in_words(failover.noticed),
        "replaced": failover.replaced,
    }


def _per_s(count: int, seconds: float) -> float:
    return round(count / seconds, 3) if seconds else 0.0


def _of_worker(worker: ObservedWorker, state: RunState) -> dict[str, Any]:
    totals = worker.totals
    return {
        "device": worker.device or None,
        "points_per_s": _per_s(totals.points, state.trained_s(worker)),
        "contributions": totals.contributions,
        "points": totals.points,
        "compute_s": totals.compute_s,
        "wait_s": totals.wait_s,
        "transfer_s": totals.transfer_s,
        "redone_s": totals.redone_s,
        "skipped": totals.skipped,
        "without_step": totals.without_step,
        "passes": worker.passes,
        "left": left_in_short(worker),
        "reported": dict(worker.reports),
    }


def _time(state: RunState) -> dict[str, float]:
    """How all workers together spent their time, in seconds. `redone` is also included in
    computing."""
    totals = [worker.totals for worker in state.workers.values()]
    return {
        "compute_s": math.fsum(t.compute_s for t in totals),
        "wait_s": math.fsum(t.wait_s for t in totals),
        "transfer_s": math.fsum(t.transfer_s for t in totals),
        "redone_s": math.fsum(t.redone_s for t in totals),
    }


def _overall(state: RunState) -> float | None:
    """The share of all workers' time that was spent on computing (PSP, Eq. 14)."""
    totals = [worker.totals for worker in state.workers.values() if worker.totals.busy_s]
    if not totals:
        return None
    return overall_usage([t.compute_s for t in totals], [t.busy_s for t in totals])


def arrival_spread_ms(state: RunState) -> float | None:
    """The median over all rounds of the time from a round's first contribution to its last."""
    spread_ms = state.spread_ms
    return None if spread_ms is None else round(spread_ms, 6)


def seconds_to_target(state: RunState, job: JobSpec) -> float | None:
    """The seconds from the opening of round 1 until the first of the job's targets was met. None:
    no target was met."""
    met: list[float] = []
    for target in job.targets:
        if target.metric == OBJECTIVE:
            found = [point for point in state.curve if point.objective is not None]
            met += [point.at_s for point in found if target.met(point.objective or 0.0)][:1]
        elif (first_s := state.metrics.first_s(target)) is not None:
            met.append(first_s)
    return round(min(met) - (state.opened_s or 0.0), 6) if met else None


def summary_text(
    result: dict[str, Any],
    run_dir: Path,
    advice: str | None = None,
    *,
    recorded: bool = True,
    details: bool = False,
    failing: bool = False,
    said: Collection[str] = (),
    columns: int = 80,
) -> str:
    """The summary as text. It ends with the result of the job and the path of its model. `columns`:
    the width of the terminal, into which the table of workers fits. `recorded`: whether the run has
    a journal. `details`: also say how the time of all workers was spent, where the journal is, and
    how to load the model. `failing`: omit why the job failed, because an error says it. `said`:
    workers whose errors the user has already seen."""
    if not recorded and not result["ended"]:
        return f"{result['job']}: stopped before it had begun"
    ended = "the job failed" if failing else result["ended"] or "did not end properly"
    # the processes of a job that did not end properly have not reported their last rounds
    known = "" if result["ended"] else "at least "
    links = "" if result["link"] == "none" or not details else f" over {result['link']} links"
    resumed = result.get("resumed_round")
    counts = {what: result[what] for what in ("rounds", "contributions", "points")}
    since = ""
    if resumed is not None:
        since = f"{_counted('rounds', result['rounds'])}; since the resume "
        counts["rounds"] -= resumed
    work = [_counted(what, count) for what, count in counts.items()]
    rows = [
        f"{result['job']}: {ended}",
        f"  {known}{since}{', '.join(work)} in {_seconds(result['seconds'])}"
        f" ({grouped(result['points_per_s'])} points/s){links}",
    ]
    if details:
        rows += _detail_rows(result, run_dir if recorded else None)
    if details or any(worker["contributions"] for worker in result["per_worker"].values()):
        rows += _worker_rows(result, columns, details=details)
    moves = list(result.get("moves", ()))
    rows += [f"  {row}" for row in (moves if details else moves[:1])]
    rows += [f"  {row}" for row in result.get("losses", ())]
    rows += _failure_rows(result.get("worker_failures", {}), run_dir, said)
    rows += _loss_rows(result["servers_lost"], result["servers_left"])
    rows += [f"  not recorded: {line}" for line in result.get("unrecorded", ())]
    if result["learning"] is not None and result["learning"]["says"] is not None:
        rows.append(f"  {result['learning']['says']}")
    if advice is not None:
        rows.append(f"  {advice}")
    if result["seconds_to_target"] is not None:
        rows.append(f"  target reached after {_seconds(result['seconds_to_target'])}")
    values = [f"{name} {measure(value)}" for name, value in result.get("metrics", {}).items()]
    if result["objective"] is not None:
        values.insert(0, f"objective {measure(result['objective'])}")
    if values:
        rows.append(f"  {', '.join(values)}")
    rows += _model_rows(result, run_dir, details=details)
    return "\n".join(rows)


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 10 else duration(seconds)


def _detail_rows(result: dict[str, Any], run_dir: Path | None) -> list[str]:
    """How all workers spent their time, and what servers did. `run_dir`: None if the run has no
    journal."""
    rows = []
    if "push" in result:
        rows.append(_push_row(result))
    if (usage := result["resource_usage"]["overall"]) is not None:
        rows.append(_time_row(result["time"], usage, result["resource_usage"]["per_round"]))
    if (spread_ms := result["arrival_spread_ms"]) is not None:
        rows.append(
            f"  time between the first and the last contribution of a round: {spread_ms:.1f} ms (median)"
        )
    folds = ", ".join(f"{server} {count}" for server, count in sorted(result["folds"].items()))
    if folds or result["ended"]:  # the lead reports the folds when the job ends
        rows.append(f"  folds: {folds or 'none'}")
    if run_dir is not None:
        rows.append(f"  journal: {run_dir / 'journal.jsonl'}")
    return rows


def _failure_rows(failures: dict[str, str], run_dir: Path, said: Collection[str]) -> list[str]:
    """The workers that failed. An error that the user has seen is not repeated."""
    rows = [
        f"  {name} failed: {how.partition(chr(10))[0]}"
        for name, how in sorted(failures.items())
        if name not in said
    ]
    if seen := sorted(failures.keys() & set(said), key=name_order):
        logs = "its log is" if len(seen) == 1 else "their logs are"
        rows.append(f"  failed: {few(seen)}; {logs} in {run_dir / LOGS}")
    return rows


def _best(line: dict[str, Any]) -> dict[str, Any]:
    names = ("path", "metric", "value", "round", "exact")
    return {name: line.get(name) for name in names}


def _no_best(state: RunState, job: JobSpec) -> str | None:
    """Why there is no best model although the user asked for one; None if there is a file, or if
    the file could not be written."""
    metric = job.keep_best.rpartition(":")[2]
    missing = metric and state.best is None and state.metrics.value(metric) is None
    return f"no worker reported {metric}" if missing else None


def _by(best: dict[str, Any]) -> str:
    """The metric by which the best model was chosen, and its value."""
    return f"{best['metric']} {measure(best['value'])}"


def _model_rows(result: dict[str, Any], run_dir: Path, *, details: bool) -> list[str]:
    """Where the trained model is, and with `details` the lines of Python that load it. If no
    contribution has counted, and the job has not reached its goal, there is no trained model."""
    rows = []
    if (best := result["best_model"]) is not None:
        path = run_dir / Path(best["path"]).name
        what = "best models" if models_of(path.name) else "best model"
        rows.append(f"  {what}: {path} ({_by(best)}, round {best['round']})")
    if result.get("no_best_model") is not None:
        rows.append(f"  best model: none, because {result['no_best_model']}")
    if result["not_saved"] is not None:
        return [*rows, f"  model: not saved: {result['not_saved']}"]
    if result["model"] is None:
        return rows
    if result.get("model_in_store"):
        return [*rows, f"  model: {result['model']}"]
    if not result.get("trained", True):
        return [*rows, "  model: none was trained, because no contribution has counted"]
    path = run_dir / Path(result["model"]).name
    names, vectors = models_of(path.name), result["kind"] == "statistics"
    what = "models" if names else "parameters" if vectors else "model"
    rows.append(f"  {what}: {path}")
    if not details:
        return rows
    if vectors:
        loads = [f'parameters = load_file("{path}")']
    elif names:
        loads = [
            f'{name}.load_state_dict(load_file("{run_dir / file_of(name)}"))' for name in names
        ]
    else:
        loads = [f'model.load_state_dict(load_file("{path}"))']
    module = "numpy" if vectors else "torch"
    rows[-1] += "; load it with"
    return [
        *rows,
        *(f"    {row}" for row in (f"from safetensors.{module} import load_file", *loads)),
    ]


def _loss_rows(losses: list[dict[str, Any]], left: int) -> list[str]:
    """The servers that were lost, and whether they were replaced."""
    rows = []
    back = [loss for loss in losses if loss["replaced"]]
    gone = [loss for loss in losses if not loss["replaced"]]
    if back:
        rows.append(f"  lost and replaced: {_lost_in_words(back)}")
    if gone:
        rows.append(f"  ended with {left} of {left + len(gone)} servers: {_lost_in_words(gone)}")
    return rows


def _lost_in_words(losses: list[dict[str, Any]]) -> str:
    return listed(
        f"{loss['server']} was lost after {loss['at_s']:.1f} s ({loss['detail']})"
        for loss in losses
    )


def _counted(what: str, count: int) -> str:
    return f"{grouped(count)} {what if count != 1 else what[:-1]}"


def _push_row(result: dict[str, Any]) -> str:
    kind = find_link_kind(result["link"])
    references = kind is not None and kind.has_payload_references
    exact = ", exact between processes of one host" if references else ""
    return f"  pushed {size(result['bytes_pushed'])} (--push {result['push']}{exact})"


def _time_row(time: dict[str, float], overall: float, per_round: float | None) -> str:
    until = "while the slowest worker of each round computed"
    within = "" if per_round is None else f" ({percent(per_round)} {until})"
    redone = f", redone {time['redone_s']:.1f} s" if time["redone_s"] else ""
    return (
        f"  all workers: computing {time['compute_s']:.1f} s, waiting {time['wait_s']:.1f} s,"
        f" transferring {time['transfer_s']:.1f} s{redone};"
        f" {percent(overall)} of the time computing{within}"
    )


def _worker_rows(result: dict[str, Any], columns: int, *, details: bool) -> list[str]:
    """The table of workers. With `details`: of all workers; otherwise of those that need attention
    and of the slowest."""
    workers: dict[str, dict[str, Any]] = result["per_worker"]
    work = {name: (each["points"], each["compute_s"]) for name, each in workers.items()}
    slow, failed = times_slower(work), result.get("worker_failures", {})
    names = sorted(workers, key=name_order)
    rows = [_row(name, workers[name], slow.get(name), name in failed) for name in names]
    drawn = table(rows, columns - 2, None if details else _MOST_ROWS)
    more = "" if details or len(rows) <= _MOST_ROWS else " (all: --verbose)"
    return [*(f"  {line}" for line, _ in drawn[:-1]), f"  {drawn[-1][0]}{more}"]


def _row(name: str, worker: dict[str, Any], slower: float | None, failed: bool) -> WorkerRow:
    slow = [] if slower is None else [f"{slower:.1f}x slower"]
    gone = worker.get("left") or ("failed" if failed else None)
    notes = [*(slow if gone is None else [gone]), *_left_out(worker)]
    times = worker["compute_s"], worker["wait_s"], worker["transfer_s"]
    whole = sum(times)
    computing, waiting, transferring = (each / whole if whole else 0.0 for each in times)
    return WorkerRow(
        name=name,
        contributions=worker["contributions"],
        points_per_s=worker.get("points_per_s", 0.0),
        shares=(computing, waiting, transferring) if whole else None,
        device=worker.get("device") or "",
        passes=worker.get("passes"),
        note=", ".join(notes),
        mark=RowStyle.GONE if gone else RowStyle.SLOW if notes else None,
    )


def _left_out(worker: dict[str, Any]) -> list[str]:
    notes = []
    if worker.get("skipped"):
        notes.append(f"{worker['skipped']} left out (not finite)")
    if worker.get("without_step"):
        notes.append(f"{worker['without_step']} left out (no step was made)")
    return notes
