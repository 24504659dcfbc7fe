"""Measures how many torch threads pay for a step on a server, and what a job without rounds costs.

    python -m benchmarks.threads [--json FILE] [--limit 45]
    python -m benchmarks.threads --job [--syncs bsp asp ssp:4] [--json FILE]

Without `--job`: the time of a step of SGD with momentum and of AdamW, for 0.1 to 102 MB of
parameters and 1 to 16 threads (at most as many as there are cores). A *slice* step adds one
contribution to every slice and folds it at once, as servers do without rounds. A *space* step folds
all slices in one call, as servers do with rounds. The steps are a millisecond apart. Each step is
measured on idle cores, beside one process per core that is always busy, and with OpenMP threads that
spin between steps, as they do if workers have several threads each; otherwise they sleep. A slice has
at most 2 MiB, so only slices are measured up to that size.

With `--job`: a transformer of about 140,000 parameters with AdamW, 3 workers, 2 servers and batches
of 16. Every policy visits the same number of points. The table has the seconds, and the processor
time and the threads of the servers.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import polyrhythm as pr
from benchmarks import readme, report
from polyrhythm.core.placement.slices import Slice
from polyrhythm.engines.environment import AT_REST
from polyrhythm.io.limits import usable_cores
from polyrhythm.tensors.held import Held
from polyrhythm.tensors.optimizers import describe_optimizer
from polyrhythm.tensors.threads import work_with
from polyrhythm.tensors.updaters import Optimizer
from polyrhythm.wire.messages import JobSpec, SliceStep

SIZES_MB = (0.1, 0.4, 2, 8, 32, 102)
THREADS = (1, 2, 4, 8, 16)
OPTIMIZERS: dict[str, Callable[[nn.Parameter], torch.optim.Optimizer]] = {
    "SGD": lambda parameter: torch.optim.SGD([parameter], lr=0.01, momentum=0.9),
    "AdamW": lambda parameter: torch.optim.AdamW([parameter], lr=0.001),
}
STEPS = ("slice", "space")
CORES = ("idle", "busy", "spinning")
_PAUSE_S = 0.001
_LEAST_STEPS, _MOST_STEPS = 3, 200


class Model:
    """The slices of a server, with an optimizer as the server has it."""

    def __init__(self, optimizer: str, nbytes: int) -> None:
        length, most = nbytes // 4, JobSpec(job="threads").slice_nbytes // 4
        firsts = range(0, length, most)
        slices = [
            Slice(number, 0, 0, first, min(most, length - first))
            for number, first in enumerate(firsts)
        ]
        self._held = [Held(s, torch.ones(s.length), torch.zeros(s.length)) for s in slices]
        spec = describe_optimizer(OPTIMIZERS[optimizer](nn.Parameter(torch.zeros(1))))
        self._updater = Optimizer(spec, self._held, fused=True, all_present=True)
        self._incoming = [torch.full((s.length,), 1e-3) for s in slices]

    def step(self, way: str) -> float:
        """Make one step and return its seconds."""
        began = time.perf_counter()
        if way == "slice":
            for held, incoming in zip(self._held, self._incoming, strict=True):
                self._updater.add(held, incoming, 16.0)
                held.weight = 16.0
                self._updater.fold([held], [held.parameters], [SliceStep(16.0, 0.01)])
                held.empty()
        else:
            steps = [SliceStep(1.0, 0.01)] * len(self._held)
            self._updater.fold(self._held, [held.parameters for held in self._held], steps)
        return time.perf_counter() - began


def _times(model: Model, way: str, threads: int, budget_s: float) -> list[float]:
    work_with(threads)
    for _ in range(2):
        model.step(way)
    times: list[float] = []
    end = time.perf_counter() + budget_s
    while len(times) < _LEAST_STEPS or (time.perf_counter() < end and len(times) < _MOST_STEPS):
        time.sleep(_PAUSE_S)
        times.append(model.step(way))
    return times


def _spin(ready: Any) -> None:
    torch.set_num_threads(1)
    numbers = torch.rand(20_000)
    ready.wait()
    while True:
        numbers.mul_(1.0000001)


def _cells(counts: Sequence[int]) -> Iterator[tuple[float, str, str, int]]:
    for size, optimizer, way, count in itertools.product(SIZES_MB, OPTIMIZERS, STEPS, counts):
        if way == "slice" or size > 2:
            yield size, optimizer, way, count


def measure_steps(cores: str, limit_s: float) -> None:
    """Print a line of JSON for each cell. All cells have equal parts of `limit_s`, so large models
    make few steps."""
    counts = [count for count in THREADS if count <= usable_cores()]
    spawn = multiprocessing.get_context("spawn")
    others = usable_cores() if cores == "busy" else 0
    ready = spawn.Barrier(others + 1)
    busy = [spawn.Process(target=_spin, args=(ready,), daemon=True) for _ in range(others)]
    for process in busy:
        process.start()
    ready.wait()
    cells = list(_cells(counts))
    models: dict[tuple[float, str], Model] = {}
    for size, optimizer, way, count in cells:
        if (size, optimizer) not in models:
            models = {(size, optimizer): Model(optimizer, int(size * 1e6))}
        times = _times(models[size, optimizer], way, count, limit_s / len(cells))
        cell = {
            **{"cores": cores, "mb": size, "optimizer": optimizer, "step": way},
            **{"threads": count, "steps": len(times)},
            "median_ms": round(1e3 * statistics.median(times), 4),
            "least_ms": round(1e3 * min(times), 4),
        }
        print(json.dumps(cell), flush=True)
    for process in busy:
        process.kill()


def steps_in_own_processes(limit_s: float) -> list[dict[str, Any]]:
    """OpenMP reads its variables when it is loaded, so another process measures each condition."""
    cells = []
    for cores in CORES:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("OMP_")
        }
        rest = {} if cores == "spinning" else AT_REST
        words = ("--measure", cores, "--limit", str(limit_s / len(CORES)))
        told = subprocess.run(
            [sys.executable, "-m", "benchmarks.threads", *words],
            env={**environment, **rest},
            cwd=readme.ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        cells += [json.loads(line) for line in told.stdout.splitlines()]
    return cells


def steps_table(cells: Sequence[dict[str, Any]]) -> str:
    counts = sorted({cell["threads"] for cell in cells})
    by_row: dict[tuple[Any, ...], dict[int, float]] = {}
    for cell in cells:
        row = (cell["cores"], cell["step"], cell["optimizer"], cell["mb"])
        by_row.setdefault(row, {})[cell["threads"]] = cell["median_ms"]
    rows = [
        f"Milliseconds of a step, medians ({report.machine()}); the fastest is in bold:",
        "",
        f"| cores | step | optimizer | MB | {' | '.join(map(str, counts))} |",
        f"|---|---|---|---|{'---|' * len(counts)}",
    ]
    for row, times in by_row.items():
        best = min(times.values())
        shown = [f"**{times[n]:.3g}**" if times[n] == best else f"{times[n]:.3g}" for n in counts]
        rows.append(f"| {' | '.join(map(str, row))} | {' | '.join(shown)} |")
    return "\n".join(rows)


# -- the job -------------------------------------------------------------------------------------

TOKENS, LENGTH, WIDTH, BATCH = 32, 24, 64, 16
POINTS, PASSES = 1_440, 3


class Transformer(nn.Module):
    """A transformer of about 140,000 parameters, more than 256 KiB for each of two servers."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4)
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        inner = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return self.head(self.layers(inner, mask=mask, is_causal=True))  # type: ignore[no-any-return]


def train_transformer(worker: pr.Worker) -> None:
    generator = torch.Generator().manual_seed(0)
    period = torch.randint(TOKENS, (POINTS, 6), generator=generator)
    points = period.repeat(1, LENGTH // 6 + 1)[:, : LENGTH + 1]
    torch.manual_seed(worker.seed)
    model = Transformer()
    optimizer = worker.attach(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    for (batch,) in worker.batches((points,), batch_size=BATCH):
        scores = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step(objective=loss)


class Watch:
    """Reads the processor time and the number of threads of the servers of a run while it runs."""

    def __init__(self, run: str) -> None:
        self.found: dict[str, dict[str, float]] = {}
        self._run = run
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    title = (folder / "cmdline").read_bytes().strip(b"\0").decode(errors="ignore")
                    if title.startswith("polyrhythm: s") and title.endswith(f" of {self._run}"):
                        self._note(title.split()[1], (folder / "stat").read_text())
                except OSError:
                    continue  # the process has ended

    def _note(self, server: str, stat: str) -> None:
        fields = stat.rpartition(")")[2].split()
        cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        before = self.found.get(server, {"threads": 0})
        threads = max(int(before["threads"]), int(fields[17]))
        self.found[server] = {"cpu_s": cpu_s, "threads": threads}


def measure_job(syncs: Sequence[str]) -> list[dict[str, Any]]:
    found = []
    for sync in syncs:
        name = f"threads-{os.getpid()}-{sync.replace(':', '-')}"
        with tempfile.TemporaryDirectory() as folder, Watch(name) as watch:
            result = pr.train(
                train_transformer,
                workers=3,
                servers=2,
                sync=sync,
                epochs=PASSES,
                name=name,
                runs_dir=folder,
                quiet=True,
            )
            summary = result.summary
        row = {
            **{"sync": sync, "seconds": summary["seconds"], "points": summary["points"]},
            **{"objective": summary["learning"]["objective"], "servers": watch.found},
        }
        report.say(json.dumps(row))
        found.append(row)
    return found


def job_table(found: Sequence[dict[str, Any]]) -> str:
    omp = os.environ.get("OMP_NUM_THREADS", "not set")
    rows = [
        f"A transformer with AdamW, 3 workers, 2 servers, batches of {BATCH}, {POINTS * PASSES} points"
        f" ({report.machine()}; OMP_NUM_THREADS is {omp}):",
        "",
        "| policy | seconds | loss of the last pass | processor seconds of the servers | threads |",
        "|---|---|---|---|---|",
    ]
    for row in found:
        servers = row["servers"].values()
        times = ", ".join(f"{server['cpu_s']:.2f}" for server in servers)
        threads = ", ".join(str(server["threads"]) for server in servers)
        shown = f"{row['seconds']:.2f} | {row['objective']:.3f} | {times} | {threads}"
        rows.append(f"| `{row['sync']}` | {shown} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--job", action="store_true", help="measure the job instead of steps")
    parser.add_argument("--syncs", nargs="+", default=["bsp", "asp", "ssp:4"])
    parser.add_argument("--limit", type=float, default=27.0, help="seconds for all steps together")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", choices=CORES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure_steps(args.measure, args.limit)
    elif args.job:
        found = measure_job(args.syncs)
        report.give({"machine": report.machine(), "job": found}, job_table(found), args.json)
    else:
        cells = steps_in_own_processes(args.limit)
        report.give({"machine": report.machine(), "steps": cells}, steps_table(cells), args.json)


if __name__ == "__main__":
    main()
