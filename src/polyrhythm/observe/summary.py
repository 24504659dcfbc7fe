"""The result of a run, made from its state alone: the JSON of `--json`, and the text that a user
reads at the end."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from polyrhythm.core.metrics import OBJECTIVE
from polyrhythm.core.model_files import file_of, models_of
from polyrhythm.core.outer import OFF
from polyrhythm.core.push_form import EXACT
from polyrhythm.core.sync.barrier.prediction import overall_usage
from polyrhythm.observe.learning import ended_in_words, learning_result
from polyrhythm.observe.moves import last_move, moves_in_words
from polyrhythm.observe.parts import ServerLoss
from polyrhythm.observe.reasons import in_words, noticed_by
from polyrhythm.observe.state import RunState, fold
from polyrhythm.observe.words import counted, listed, measure, percent, size
from polyrhythm.observe.worker import ObservedWorker
from polyrhythm.wire.messages import JobSpec

_WIRE_SHARE = {"same": 1.0, "bf16": 0.5}
_MOST_ROWS = 24
_SHOWN_OF_MANY = 8


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
    """The result that `--json` prints, from a state. `bytes_pushed` is the size of all contributions:
    a worker measures a contribution that does not carry every slice of the model as it is, because of
    `--push int8`, sparse gradients, several models or buffers. `bytes_pulled` is computed: a worker
    reads the model once when it joins and once after each contribution. With `--wire-dtype bf16`, a
    model of float32 travels at half its size."""
    seconds = state.seconds
    carried = state.nbytes * _WIRE_SHARE.get(job.wire_dtype, 1.0)
    return {
        "link": "+".join(sorted(set(state.links.values()))) or "none",
        "rounds": state.round,
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
        "arrival_spread_ms": arrival_spread_ms(state),
        "per_worker": {worker.name: _of_worker(worker, state) for worker in state.workers.values()},
        "folds": {f"s{server}": count for server, count in state.folds.items()},
        "servers_left": len(state.servers),
        "servers_lost": [_loss(failover) for failover in state.failovers],
        "model": state.model,
        "model_in_store": state.model_in_store,
        "best_model": None if state.best is None else _best(state.best),
        "no_best_model": _no_best(state, job),
        "not_saved": None if state.not_saved is None else in_words(state.not_saved),
        "ended": ended_in_words(state),
    }


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
        "points_per_s": _per_s(totals.points, _trained_s(worker, state)),
        "contributions": totals.contributions,
        "points": totals.points,
        "compute_s": totals.compute_s,
        "wait_s": totals.wait_s,
        "transfer_s": totals.transfer_s,
        "redone_s": totals.redone_s,
        "skipped": totals.skipped,
        "without_step": totals.without_step,
        "passes": worker.passes,
        "reported": dict(worker.reports),
    }


def _trained_s(worker: ObservedWorker, state: RunState) -> float:
    """The seconds from the first round of this worker until it left, or until now."""
    began_s = max(worker.joined_s, state.opened_s or 0.0)
    worked_s = state.worked_s or 0.0
    ended_s = worked_s if worker.left_s is None else min(worker.left_s, worked_s)
    return max(0.0, ended_s - began_s)


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
    result: dict[str, Any], run_dir: Path, advice: str | None = None, *, recorded: bool = True
) -> str:
    """The summary as text. The last sentence is advice, if there is any. `recorded`: whether the run
    has a journal."""
    if not recorded and not result["ended"]:
        return f"{result['job']}: stopped before it had begun"
    # the processes of a job that did not end by itself have not reported their last rounds
    known = "" if result["ended"] else "at least "
    links = "" if result["link"] == "none" else f" over {result['link']} links"
    rows = [
        f"{result['job']}: {result['ended'] or 'did not end by itself'}",
        f"  {known}{result['rounds']} rounds, {result['contributions']} contributions,"
        f" {result['points']} points in {result['seconds']:.2f} s"
        f" ({result['points_per_s']:.0f} points/s){links}",
    ]
    rows += [f"  {name} {measure(value)}" for name, value in result.get("metrics", {}).items()]
    if result["objective"] is not None:
        rows.append(f"  objective {result['objective']:.4f}")
    if result["learning"] is not None and result["learning"]["says"] is not None:
        rows.append(f"  {result['learning']['says']}")
    if result["seconds_to_target"] is not None:
        rows.append(f"  target met after {result['seconds_to_target']:.2f} s")
    if "push" in result:
        rows.append(_push_row(result))
    if (usage := result["resource_usage"]["overall"]) is not None:
        rows.append(_time_row(result["time"], usage, result["resource_usage"]["per_round"]))
    if (spread_ms := result["arrival_spread_ms"]) is not None:
        rows.append(
            f"  from the first contribution of a round to its last: {spread_ms:.1f} ms (median)"
        )
    rows += _worker_rows(result["per_worker"])
    rows += [f"  {row}" for row in result.get("moves", ())]
    rows += [
        f"  {name} failed: {how.partition(chr(10))[0]}"
        for name, how in sorted(result.get("worker_failures", {}).items())
    ]
    folds = ", ".join(f"{server} {count}" for server, count in sorted(result["folds"].items()))
    if folds or result["ended"]:  # the lead reports the folds when the job ends
        rows.append(f"  folds: {folds or 'none'}")
    rows += _loss_rows(result["servers_lost"], result["servers_left"])
    if recorded:
        rows.append(f"  journal: {run_dir / 'journal.jsonl'}")
    rows += _model_rows(result, run_dir)
    rows += [f"  not recorded: {line}" for line in result.get("unrecorded", ())]
    return "\n".join(rows if advice is None else [*rows, f"  {advice}"])


def _best(line: dict[str, Any]) -> dict[str, Any]:
    names = ("path", "metric", "value", "round", "exact")
    return {name: line.get(name) for name in names}


def _no_best(state: RunState, job: JobSpec) -> str | None:
    """Why there is no best model although the job was to keep one; None if there is a file, or if
    the file could not be written."""
    metric = job.keep_best.rpartition(":")[2]
    missing = metric and state.best is None and state.metrics.value(metric) is None
    return f"no worker reported {metric}" if missing else None


def _by(best: dict[str, Any]) -> str:
    """The metric by which the best model was chosen, and its value."""
    return f"{best['metric']} {measure(best['value'])}"


def _model_rows(result: dict[str, Any], run_dir: Path) -> list[str]:
    """Where the trained model is, and the lines of Python that load it."""
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
    if result["model_in_store"]:
        return [*rows, f"  model: {result['model']}"]
    path = run_dir / Path(result["model"]).name
    if names := models_of(path.name):
        loads = [
            f'    {name}.load_state_dict(load_file("{run_dir / file_of(name)}"))' for name in names
        ]
        first = f"  models: {path}; load them with"
        return [*rows, first, "    from safetensors.torch import load_file", *loads]
    if result["kind"] == "statistics":
        return [
            *rows,
            f"  parameters: {path}; load them as numpy arrays with",
            "    from safetensors.numpy import load_file",
            f'    parameters = load_file("{path}")',
        ]
    return [
        *rows,
        f"  model: {path}; load it with",
        "    from safetensors.torch import load_file",
        f'    model.load_state_dict(load_file("{path}"))',
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


def _push_row(result: dict[str, Any]) -> str:
    exact = ", exact within this host" if result["link"] in ("local", "memory") else ""
    return f"  pushed {size(result['bytes_pushed'])} (--push {result['push']}{exact})"


def _time_row(time: dict[str, float], overall: float, per_round: float | None) -> str:
    until = "of the time before the slowest worker of each round had computed"
    within = "" if per_round is None else f" ({percent(per_round)} {until})"
    redone = f", redone {time['redone_s']:.1f} s" if time["redone_s"] else ""
    return (
        f"  all workers: computing {time['compute_s']:.1f} s, waiting {time['wait_s']:.1f} s,"
        f" transferring {time['transfer_s']:.1f} s{redone};"
        f" {percent(overall)} of the time computing{within}"
    )


def _worker_rows(workers: dict[str, dict[str, Any]]) -> list[str]:
    """The rows of all workers. If there are many, those that computed for the largest share of
    their time have rows, because the others waited for them. The others share one row."""
    by_name = sorted(workers.items())
    if len(workers) <= _MOST_ROWS:
        return [_worker_row(*each) for each in by_name]
    by_share = sorted(by_name, key=lambda each: _share(each[1]), reverse=True)
    shown, others = by_share[:_SHOWN_OF_MANY], by_share[_SHOWN_OF_MANY:]
    return [_worker_row(*each) for each in shown] + [
        f"  and {len(others)} others: computing {percent(_share(others[-1][1]))} to"
        f" {percent(_share(others[0][1]))} (--json has them all)"
    ]


def _share(worker: dict[str, Any]) -> float:
    """The share of a worker's time that was computing."""
    whole = float(worker["compute_s"] + worker["wait_s"] + worker["transfer_s"])
    return worker["compute_s"] / whole if whole else 0.0


def _worker_row(name: str, worker: dict[str, Any]) -> str:
    parts = [worker["compute_s"], worker["wait_s"], worker["transfer_s"]]
    whole = sum(parts)
    computing, waiting, transferring = (percent(part / whole) if whole else "-" for part in parts)
    skipped = f", {worker['skipped']} left out (not finite)" if worker.get("skipped") else ""
    if worker.get("without_step"):
        skipped += f", {worker['without_step']} left out (no step was made)"
    device = f"{worker['device']}, " if worker.get("device") else ""
    passes = worker.get("passes")
    passed = "" if passes is None else f" {passes:.1f} passes,"
    return (
        f"  {name}: {device}{worker.get('points_per_s', 0.0):.0f} points/s,"
        f" {counted(worker['contributions'], 'contribution')}{skipped},{passed}"
        f" computing {computing}, waiting {waiting}, transferring {transferring}"
    )
