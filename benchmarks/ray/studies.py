"""What is measured on the cluster of this process. Every function returns its figures."""

import os
import signal
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import polyrhythm as pr
from benchmarks import report
from benchmarks.ray import documented
from benchmarks.ray.digits_job import BATCH, PACE_MS, STEPS, build, tested
from polyrhythm.api.hosts import ProcessOptions, child_requests
from polyrhythm.cli.bench import final_reports, pushed_nbytes
from polyrhythm.engines.choice import LOCAL, RAY, choose_engine
from polyrhythm.engines.engine import ClusterOptions, EngineWatch
from polyrhythm.io.limits import usable_cores
from polyrhythm.observe.journal import read_journal
from polyrhythm.wire.messages import JobSpec

HERE = Path(__file__).parent
WORKERS = 4
SIZES = ("102MB", "4MB")
COUNTS = (1, 2, 4, 8)
_GIVE_UP_S = 120.0
_MOST_DEATHS = 4
"""A worker that dies five times in a row soon after its start is not started again."""
_STUDY_S = 80.0
"""No run is repeated after this time, so that all studies take about a quarter of an hour."""


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="polyrhythm-ray-") as name:
        yield Path(name)


def _repeated(repeat: int) -> Iterator[int]:
    until_s = time.monotonic() + _STUDY_S
    for number in range(repeat):
        if number and time.monotonic() > until_s:
            return
        yield number


# -- exchange ------------------------------------------------------------------------------------


def exchange(repeat: int) -> dict[str, Any]:
    """Rounds per second of both engines, in turn, with the same idle cluster beside them."""
    found: dict[str, dict[str, list[float]]] = {}
    for size in SIZES:
        rates = found[size] = {LOCAL: [], RAY: []}
        for _ in _repeated(repeat):
            for engine in rates:
                rates[engine].append(_rounds_per_s(engine, pushed_nbytes(size)))
        latest = {engine: round(each[-1], 1) for engine, each in rates.items()}
        report.say(f"exchange, {size}: {latest} rounds a second")
    return {
        size: {
            **{engine: statistics.median(each) for engine, each in rates.items()},
            "ratio": statistics.median(
                on_ray / here for on_ray, here in zip(rates[RAY], rates[LOCAL], strict=True)
            ),
        }
        for size, rates in found.items()
    }


def _rounds_per_s(engine: str, nbytes: int) -> float:
    rounds = max(20, min(1500, int(1.6e9 / nbytes)))
    warmup = max(5, rounds // 10)
    spec = JobSpec(
        job=uuid.uuid4().hex,
        name="exchange",
        workers=WORKERS,
        servers=1,
        rounds=warmup + rounds,
        link="local",
        updater="addition",
        options={
            **{"nbytes": str(nbytes), "warmup": str(warmup)},
            **{"workers": str(WORKERS), "in_place": "no"},
        },
    )
    # the server uses as many threads as it has CPUs; that of the local engine uses all cores
    options = ClusterOptions(None, (), (f"CPU={usable_cores()}",)) if engine == RAY else None
    with _folder() as folder:
        requests = child_requests(spec, folder, ProcessOptions(link="local", threads=1))
        run = choose_engine(engine, options).run(requests, EngineWatch(say=lambda line: None))
        lines = list(read_journal(folder / "journal.jsonl"))
    if run.failed is not None or run.worker_failures:
        raise SystemExit(run.failed or "; ".join(run.worker_failures.values()))
    reports = final_reports(lines, WORKERS)
    return float(statistics.median(each["rounds"] / each["took_s"] for each in reports))


# -- starting ------------------------------------------------------------------------------------


def starting(repeat: int) -> dict[str, Any]:
    """Seconds until all workers of a job have made a step, until as many new actors have imported torch,
    and until as many have also made an optimizer."""
    jobs, actors, optimizers = [], [], []
    for _ in _repeated(repeat):
        with _folder() as folder:
            began_s = time.monotonic()
            _marking(folder, workers=WORKERS, rounds=3)
            jobs.append(max(_steps(file)[0] for file in _marks(folder)) - began_s)
        actors.append(documented.start_torch(WORKERS))
        optimizers.append(documented.start_torch(WORKERS, optimizer=True))
        report.say(
            f"starting: a job {jobs[-1]:.1f} s, actors with torch {actors[-1]:.1f} s, with an optimizer"
            f" {optimizers[-1]:.1f} s"
        )
    job, actor = statistics.median(jobs), statistics.median(actors)
    return {
        "workers": WORKERS,
        "job_s": job,
        "actors_s": actor,
        "more_s": job - actor,
        "optimizers_s": statistics.median(optimizers),
    }


def _marking(folder: Path, **how: Any) -> None:
    pr.train(
        HERE / "marking_job.py",
        engine=RAY,
        servers=1,
        set={"folder": str(folder)},
        runs_dir=folder / "runs",
        quiet=True,
        **how,
    )


def _marks(folder: Path) -> list[Path]:
    return sorted(folder.glob("worker-*"))


def _steps(file: Path) -> list[float]:
    """When the steps of one process of a worker ended. The last line may be in the making."""
    return [float(line) for line in file.read_text().split("\n")[:-1]]


# -- returning -----------------------------------------------------------------------------------


def returning(repeat: int) -> dict[str, Any]:
    """Seconds from the death of a worker until it contributes again, and until a new actor has imported
    torch, in turn while the same job runs. `pause_ms`: the longest step of any other worker from a
    death until that return, and `usual_ms`: their longest step in the second before it."""
    found: dict[str, list[float]] = {"returns": [], "actors": [], "pauses": [], "usual": []}
    with _folder() as folder:
        disturber = threading.Thread(target=_disturb, args=(folder, repeat, found), daemon=True)
        disturber.start()
        _marking(
            folder,
            workers=3,
            respawn=True,
            min_step="20ms",
            target="finished=1",
            max_seconds=_GIVE_UP_S * 3,
        )
    if not found["actors"]:
        raise SystemExit("the killed worker did not come back")
    medians = {name: statistics.median(each) for name, each in found.items()}
    return {
        "return_s": medians["returns"],
        "actor_s": medians["actors"],
        "more_s": medians["returns"] - medians["actors"],
        "pause_ms": 1e3 * medians["pauses"],
        "usual_ms": 1e3 * medians["usual"],
    }


def _disturb(folder: Path, repeat: int, found: dict[str, list[float]]) -> None:
    try:
        _await_steps(folder, "worker-0", known=set(), steps=50)
        for _ in _repeated(min(repeat, _MOST_DEATHS)):
            known = set(_marks(folder))
            newest = max(folder.glob("worker-0.*"), key=lambda file: file.stat().st_mtime)
            killed_s = time.monotonic()
            os.kill(int(newest.suffix[1:]), signal.SIGKILL)
            new = _await_steps(folder, "worker-0", known, steps=50)
            back_s = _steps(new)[0]
            found["returns"].append(back_s - killed_s)
            found["pauses"].append(_longest_step(folder, killed_s, back_s))
            found["usual"].append(_longest_step(folder, killed_s - 1, killed_s))
            found["actors"].append(documented.start_torch(1))
            report.say(
                f"returning: a worker {found['returns'][-1]:.2f} s,"
                f" an actor with torch {found['actors'][-1]:.2f} s"
            )
    finally:
        (folder / "finish").touch()


def _await_steps(folder: Path, name: str, known: set[Path], steps: int) -> Path:
    """Wait until a new process of a worker has made steps. Returns its file."""
    until_s = time.monotonic() + _GIVE_UP_S
    while time.monotonic() < until_s:
        for file in set(folder.glob(f"{name}.*")) - known:
            if len(_steps(file)) >= steps:
                return file
        time.sleep(0.02)
    raise SystemExit(f"{name} does not train")


def _longest_step(folder: Path, first_s: float, last_s: float) -> float:
    """The longest step of a worker other than worker-0 that ended in this time."""
    longest = 0.0
    for file in folder.glob("worker-[12].*"):
        for before, after in pairwise(_steps(file)):
            if first_s <= after <= last_s:
                longest = max(longest, after - before)
    return longest


# -- RayPS's experiments -------------------------------------------------------------------------


def rayps(found: dict[str, Any], keep: Callable[[], None]) -> None:
    """Measure seconds and accuracy of `STEPS` steps with 1 to 8 workers and one server, and with one
    worker and 1 to 8 servers (Figs. 5 and 6). A run that `found` already has is not repeated. `keep` is
    called after each run."""
    found |= {"steps": STEPS, "batch": BATCH, "pace_ms": PACE_MS}
    rows: dict[str, Callable[[int], dict[str, float]]] = {
        "workers, polyrhythm, sync": lambda count: _trained(count, 1, "bsp"),
        "workers, polyrhythm, async": lambda count: _trained(count, 1, "asp"),
        "workers, Ray, sync": lambda count: _documented(count, together=True),
        "workers, Ray, async": lambda count: _documented(count, together=False),
        "servers, polyrhythm, sync": lambda count: _trained(1, count, "bsp"),
    }
    for name, run in rows.items():
        row = found.setdefault(name, {})
        for count in COUNTS:
            if str(count) not in row:
                row[str(count)] = run(count)
                keep()


def _documented(workers: int, *, together: bool) -> dict[str, float]:
    found = documented.train(workers, together=together)
    report.say(f"RayPS: {workers} workers of Ray's example took {found['seconds']:.1f} s")
    return found


def _trained(workers: int, servers: int, policy: str) -> dict[str, float]:
    with _folder() as folder:
        result = pr.train(
            HERE / "digits_job.py",
            engine=RAY,
            workers=workers,
            servers=servers,
            sync=policy,
            points=(STEPS + workers) * BATCH,
            min_step=f"{PACE_MS}ms",
            set={"folder": str(folder), "workers": str(workers)},
            runs_dir=folder / "runs",
            quiet=True,
        )
        times = [
            [float(each) for each in file.read_text().split()] for file in folder.glob("worker-*")
        ]
        model, _ = build()
        model.load_state_dict(result.state_dict())
    took_s = max(end for _, end in times) - min(began for began, _ in times)
    report.say(f"RayPS: {policy}, {workers} workers, {servers} servers took {took_s:.1f} s")
    return {"seconds": took_s, "accuracy": tested(model)}
