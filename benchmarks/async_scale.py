"""Compares the scales of a contribution's step without rounds (`--async-scale`) with plain torch.

    python -m benchmarks.async_scale --out FILE [--workers 2 4 8] [--parallel 4] [--rates 1 3]
                                     [--syncs asp] [--jobs digits] [--optimizers Adam] [--docs]
                                     [--seeds 2] [--max-seconds 300]
    python -m benchmarks.async_scale --table FILE [FILE ...] [--docs]

Small jobs are trained with every optimizer and every scale: 1/P (`members`), 1/sqrt(P) (`root`) and 1
(`none`) of the learning rate for P workers. Plain torch makes the same number of passes in one
process, once with the batch of all workers together and once with the batch of one worker. A result
has the loss on the training data after half of the passes and at the end, and the test score
(accuracy, or the explained share of the variance). Every result is written to FILE at once; results
that are there already are not measured again. So a measurement that was stopped, also by
`--max-seconds`, continues with the same command.
"""

import argparse
import functools
import json
import math
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import polyrhythm as pr
from benchmarks import readme, report
from benchmarks.commands import call

SCALES = ("members", "root", "none")
PLAIN_ALL, PLAIN_ONE = "plain, all batches", "plain, one batch"
_LIMIT_S = 120.0
_SEED = 1
Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Job:
    train: Tensors
    test: Tensors
    build: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Tensors], torch.Tensor]
    score: Callable[[nn.Module, Tensors], float]
    batch: int
    passes: int


# -- jobs ----------------------------------------------------------------------------------------


def _classify(model: nn.Module, points: Tensors) -> torch.Tensor:
    return nn.functional.cross_entropy(model(points[0]), points[1])


def _accuracy(model: nn.Module, points: Tensors) -> float:
    return float((model(points[0]).argmax(1) == points[1]).float().mean())


def _digits() -> Job:
    from sklearn.datasets import load_digits

    data = load_digits()
    x, y = torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    return Job((x[:1400], y[:1400]), (x[1400:], y[1400:]), build, _classify, _accuracy, 16, 10)


TOKENS, PERIOD, LENGTH = 12, 4, 12


class Transformer(nn.Module):
    """Continues sequences; about 10,000 parameters."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, width)
        self.places = nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(width, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        inner = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return self.head(self.layers(inner, mask=mask, is_causal=True))  # type: ignore[no-any-return]


def _characters() -> Job:
    """Sequences that repeat some random tokens. The tokens before the repetition cannot be known, so
    only the others count."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(TOKENS, (1_000, PERIOD), generator=generator)
    tokens = tokens.repeat(1, LENGTH // PERIOD + 1)[:, : LENGTH + 1]

    def scores(model: nn.Module, points: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
        (tokens,) = points
        known = slice(PERIOD - 1, None)
        return model(tokens[:, :-1])[:, known].flatten(0, 1), tokens[:, 1:][:, known].flatten()

    def loss(model: nn.Module, points: Tensors) -> torch.Tensor:
        guessed, wanted = scores(model, points)
        return nn.functional.cross_entropy(guessed, wanted)

    def score(model: nn.Module, points: Tensors) -> float:
        guessed, wanted = scores(model, points)
        return float((guessed.argmax(1) == wanted).float().mean())

    return Job((tokens[:800],), (tokens[800:],), Transformer, loss, score, 8, 6)


class Ratings(nn.Module):
    def __init__(self, users: int, films: int, width: int, *, sparse: bool) -> None:
        super().__init__()
        self.users = nn.Embedding(users, width, sparse=sparse)
        self.films = nn.Embedding(films, width, sparse=sparse)
        for embedding in (self.users, self.films):
            nn.init.normal_(embedding.weight, std=0.3)

    def forward(self, users: torch.Tensor, films: torch.Tensor) -> torch.Tensor:
        rated: torch.Tensor = (self.users(users) * self.films(films)).sum(1)
        return rated


def _ratings(users: int, films: int, *, sparse: bool, count: int = 8_000, passes: int = 8) -> Job:
    """Ratings are high if the tastes of the user fit the film. With few users and films a row is in
    the batches of all workers, with many in the batch of one."""
    generator = torch.Generator().manual_seed(0)
    tastes = torch.randn(users, 3, generator=generator)
    traits = torch.randn(films, 3, generator=generator)
    who = torch.randint(users, (count,), generator=generator)
    what = torch.randint(films, (count,), generator=generator)
    noise = 0.3 * torch.randn(count, generator=generator)
    points = (who, what, (tastes[who] * traits[what]).sum(1) + noise)

    def loss(model: nn.Module, points: Tensors) -> torch.Tensor:
        errors: torch.Tensor = nn.functional.mse_loss(model(points[0], points[1]), points[2])
        return errors

    def score(model: nn.Module, points: Tensors) -> float:
        return 1 - (loss(model, points) / points[2].var()).item()

    def part(some: slice) -> Tensors:
        return tuple(each[some] for each in points)

    build = functools.partial(Ratings, users, films, 4, sparse=sparse)
    train = count * 4 // 5
    return Job(part(slice(train)), part(slice(train, None)), build, loss, score, 32, passes)


def _topics() -> Job:
    """Texts of words with Zipf's frequencies. A topic has words that are more frequent in its texts."""
    generator = torch.Generator().manual_seed(0)
    words, length, topics, count = 2_000, 20, 5, 4_000
    usual = 1 / torch.arange(1, words + 1).float()
    boost = torch.ones(topics, words)
    for topic in range(topics):
        boost[topic, torch.randperm(words, generator=generator)[:200]] = 4.0
    y = torch.randint(topics, (count,), generator=generator)
    x = torch.multinomial((usual * boost)[y], length, replacement=True, generator=generator)

    def build() -> nn.Module:
        return nn.EmbeddingBag(words, topics, mode="mean", sparse=True)

    return Job((x[:3200], y[:3200]), (x[3200:], y[3200:]), build, _classify, _accuracy, 32, 6)


JOBS: dict[str, Callable[[], Job]] = {
    "digits": _digits,
    "characters": _characters,
    "ratings": functools.partial(_ratings, 150, 100, sparse=False),
    "frequent rows": functools.partial(_ratings, 40, 30, sparse=True),
    "rare rows": functools.partial(_ratings, 500, 300, sparse=True),
    "rare rows, long": functools.partial(
        _ratings, 2_000, 1_200, sparse=True, count=64_000, passes=6
    ),
    "topics": _topics,
}
RATES: dict[str, dict[str, float]] = {
    "digits": {"SGD": 0.02, "Adam": 0.002, "AdamW": 0.002, "Adagrad": 0.02},
    "characters": {"SGD": 0.02, "Adam": 0.001, "AdamW": 0.001, "Adagrad": 0.01},
    "ratings": {"SGD": 0.15, "Adam": 0.01, "AdamW": 0.01, "Adagrad": 0.15},
    "frequent rows": {"SparseAdam": 0.01},
    "rare rows": {"SparseAdam": 0.02, "Adagrad": 0.3},
    "rare rows, long": {"SparseAdam": 0.03},
    "topics": {"SparseAdam": 0.03},
}
"""Per job and optimizer: a learning rate that suits plain torch with the batch of four workers."""
OPTIMIZERS = ("SGD", "Adam", "AdamW", "Adagrad", "SparseAdam")


def _optimizer(name: str, model: nn.Module, rate: float) -> torch.optim.Optimizer:
    options = {"momentum": 0.9} if name == "SGD" else {}
    kind = getattr(torch.optim, name)
    return kind(model.parameters(), lr=rate, **options)  # type: ignore[no-any-return]


# -- runs ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    job: str
    optimizer: str
    workers: int
    """For plain torch: the number of workers whose batches make one batch."""
    sync: str
    """A policy without rounds; empty for plain torch."""
    scale: str
    """A value of `--async-scale`; for plain torch, PLAIN_ALL or PLAIN_ONE."""
    rate: float
    """A factor of the job's learning rate."""
    seed: int


def _measured(job: Job, model: nn.Module) -> dict[str, float]:
    with torch.no_grad():
        return {"loss": job.loss(model, job.train).item(), "score": job.score(model, job.test)}


def _train_plainly(run: Run) -> list[dict[str, float]]:
    """Train in this process. Returns what is measured after every pass."""
    job = JOBS[run.job]()
    torch.manual_seed(run.seed)
    model = job.build()
    optimizer = _optimizer(run.optimizer, model, RATES[run.job][run.optimizer] * run.rate)
    batch = job.batch * run.workers
    generator = torch.Generator().manual_seed(run.seed)
    curve = []
    for _ in range(job.passes):
        order = torch.randperm(len(job.train[0]), generator=generator)
        for first in range(0, len(order), batch):
            points = tuple(each[order[first : first + batch]] for each in job.train)
            optimizer.zero_grad()
            job.loss(model, points).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        curve.append(_measured(job, model))
    return curve


def _work(run: Run, worker: pr.Worker) -> None:
    job = JOBS[run.job]()
    torch.manual_seed(worker.seed)
    model = job.build()
    rate = RATES[run.job][run.optimizer] * run.rate
    optimizer = worker.attach(model, _optimizer(run.optimizer, model, rate))
    for points in worker.batches(job.train, batch_size=job.batch):
        loss = job.loss(model, tuple(points))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step(objective=loss)
        worker.evaluate(lambda: _measured(job, model), every="pass")


def _train_served(run: Run) -> list[dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        result = pr.train(
            functools.partial(_work, run),
            workers=run.workers,
            servers=1,
            threads=1,
            sync=run.sync,
            async_scale=run.scale,
            epochs=JOBS[run.job]().passes,
            seed=run.seed,
            runs_dir=folder,
            quiet=True,
        )
        return [
            {"loss": record["loss"], "score": record["score"]}
            for record in result.history
            if "loss" in record
        ]


def perform(run: Run) -> dict[str, Any]:
    """Train, in this process or in those of a job, and return the losses and the score."""
    torch.set_num_threads(1)
    curve = _train_served(run) if run.sync else _train_plainly(run)
    half, last = curve[(len(curve) - 1) // 2], curve[-1]
    return {"half_loss": half["loss"], "loss": last["loss"], "score": last["score"]}


def runs_for(
    jobs: Sequence[str],
    optimizers: Sequence[str],
    workers: Sequence[int],
    syncs: Sequence[str],
    rates: Sequence[float],
    seeds: int,
) -> Iterator[Run]:
    pairs = [(job, each) for job in jobs for each in RATES[job] if each in optimizers]
    for rate in rates:
        for seed in range(_SEED, _SEED + seeds):
            for job, optimizer in pairs:
                yield Run(job, optimizer, 1, "", PLAIN_ONE, rate, seed)
            for count in workers:
                for job, optimizer in pairs:
                    yield Run(job, optimizer, count, "", PLAIN_ALL, rate, seed)
                    for sync in syncs:
                        for scale in SCALES:
                            yield Run(job, optimizer, count, sync, scale, rate, seed)


def measure(runs: Sequence[Run], parallel: int, out: Path, max_s: float = math.inf) -> None:
    """Add the results of all runs to the file, a line of JSON each. Every run is a process of its
    own, `parallel` of them at a time. After `max_s` no further run begins."""
    end_s = time.monotonic() + max_s
    known = {json.dumps(row["run"]) for row in load([out])} if out.exists() else set()
    writing = threading.Lock()

    def one(run: Run) -> None:
        if json.dumps(asdict(run)) in known or time.monotonic() > end_s:
            return
        words = [sys.executable, "-m", "benchmarks.async_scale", "--run", json.dumps(asdict(run))]
        found = call(words, _LIMIT_S)
        with writing, out.open("a") as file:
            row = {"run": asdict(run), "machine": report.machine(anew=False), **found}
            file.write(json.dumps(row) + "\n")
        report.say(f"{run}: {found}")

    with ThreadPoolExecutor(parallel) as pool:
        list(pool.map(one, runs))


def load(files: Sequence[Path]) -> list[dict[str, Any]]:
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


# -- the table -----------------------------------------------------------------------------------


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Each cell has the loss after half of the passes, the loss at the end, and the test score, as
    means over the seeds."""
    columns = [PLAIN_ONE, PLAIN_ALL, *SCALES]
    cells: dict[tuple[Any, ...], dict[str, list[dict[str, Any]]]] = {}
    runs = [(Run(**row["run"]), row) for row in rows]
    served = dict.fromkeys((run.workers, run.sync) for run, _ in runs if run.sync)
    for run, row in runs:
        for workers, sync in served:
            if run.scale == PLAIN_ONE or (run.workers == workers and run.sync in ("", sync)):
                at = (OPTIMIZERS.index(run.optimizer), run.job, workers, run.rate, sync)
                cells.setdefault(at, {}).setdefault(run.scale, []).append(row)
    machines = " and ".join(dict.fromkeys(row["machine"] for row in rows))
    seeds = len({run.seed for run, _ in runs})
    shown = [
        "Loss after half of the passes, loss at the end, test score"
        f" ({machines}; {seeds} seed{'s' if seeds > 1 else ''}). The scale whose two losses are nearest"
        " to those of plain torch with the batch of all workers is in bold:",
        "",
        f"| optimizer | job | workers | rate | policy | {' | '.join(columns)} |",
        f"|---|---|---|---|---|{'---|' * len(columns)}",
    ]
    for at in sorted(cells):
        number, job, workers, rate, sync = at
        by_scale = cells[at]
        wanted = by_scale.get(PLAIN_ALL, [])
        distances = {
            scale: _distance(by_scale[scale], wanted) for scale in SCALES if scale in by_scale
        }
        nearest = min(distances, key=lambda scale: distances[scale], default=None)
        texts = [_cell(by_scale.get(each, []), bold=each == nearest) for each in columns]
        fixed = f"{OPTIMIZERS[number]} | {job} | {workers} | x{rate:g} | `{sync}`"
        shown.append(f"| {fixed} | {' | '.join(texts)} |")
    return "\n".join(shown)


def _mean(rows: Sequence[dict[str, Any]], name: str) -> float:
    """The mean; infinity if a run failed."""
    values = [float(row.get(name, math.inf)) for row in rows]
    return sum(values) / len(values) if values else math.inf


def _distance(rows: Sequence[dict[str, Any]], wanted: Sequence[dict[str, Any]]) -> float:
    """How much the two losses differ from those that are wanted: the sum of the logarithms of their
    ratios; infinity if a run failed or is missing."""
    pairs = [(_mean(rows, name), _mean(wanted, name)) for name in ("half_loss", "loss")]
    if any(math.isinf(loss) for pair in pairs for loss in pair):
        return math.inf
    return sum(abs(math.log(loss / goal)) for loss, goal in pairs)


def _cell(rows: Sequence[dict[str, Any]], *, bold: bool) -> str:
    if not rows:
        return ""
    names = ("half_loss", "loss", "score")
    text = ", ".join(f"{_mean(rows, name):.3f}" for name in names)
    return f"**{text}**" if bold else text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=OPTIMIZERS)
    parser.add_argument("--workers", nargs="+", type=report.at_least_one, default=[2, 4, 8])
    parser.add_argument("--syncs", nargs="+", default=["asp"])
    parser.add_argument("--rates", nargs="+", type=float, default=[1.0])
    parser.add_argument("--seeds", type=report.at_least_one, default=1)
    parser.add_argument(
        "--parallel", type=report.at_least_one, default=1, help="number of concurrent runs"
    )
    parser.add_argument(
        "--max-seconds", type=float, default=math.inf, help="begin no further run after this time"
    )
    parser.add_argument("--out", type=Path, help="the file to which results are added")
    parser.add_argument(
        "--table", nargs="+", type=Path, help="only print the results in these files"
    )
    parser.add_argument(
        "--docs", action="store_true", help="write the table to benchmarks/staleness/README.md"
    )
    parser.add_argument("--run", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        print(json.dumps(perform(Run(**json.loads(args.run)))))
        return
    if not args.table and args.out is None:
        parser.error("give --out FILE")
    if not args.table:
        runs = list(
            runs_for(args.jobs, args.optimizers, args.workers, args.syncs, args.rates, args.seeds)
        )
        measure(runs, args.parallel, args.out, args.max_seconds)
    shown = table(load(args.table or [args.out]))
    print(shown)
    if args.docs:
        readme.write("async-scale", shown, readme.ROOT / "benchmarks" / "staleness" / "README.md")


if __name__ == "__main__":
    main()
