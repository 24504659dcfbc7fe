"""`polyrhythm bench`: measures the speed of exchanges, and compares it with the limit of this
host."""

import json
import statistics
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Annotated, Any

import typer

from polyrhythm.api import flags
from polyrhythm.api.checks import check_spec
from polyrhythm.api.hosts import ProcessOptions, child_requests
from polyrhythm.api.options import check_values
from polyrhythm.api.training import train
from polyrhythm.cli.command import Command
from polyrhythm.core.devices import CPU, parse_devices
from polyrhythm.core.placement.division import ALPHA, best_nbytes, fit_alpha
from polyrhythm.core.values import parse_size
from polyrhythm.engines.choice import choose_engine
from polyrhythm.engines.engine import EngineWatch
from polyrhythm.engines.environment import environment
from polyrhythm.errors import JobFailed, UsageError
from polyrhythm.observe.journal import read_journal
from polyrhythm.wire.messages import JobSpec

bench = typer.Typer(help="Measure this machine.", no_args_is_help=True)


@bench.callback()
def _bench() -> None:
    """Measure this machine."""


def pushed_nbytes(text: str) -> int:
    """Return a size such as 102MB as a number of bytes, rounded down to whole float32 values."""
    try:
        nbytes = parse_size(text)
    except ValueError as error:
        raise UsageError(f"--size {error}") from None
    if nbytes < 4:
        raise UsageError(f"--size {text} is too small: a float32 value has 4B")
    return nbytes // 4 * 4


def _rounds_for(nbytes: int) -> int:
    """Return a number of rounds that takes about one or two seconds."""
    return max(20, min(2000, int(2e9 / nbytes)))


@bench.command(cls=Command)
def exchange(
    size: Annotated[
        str,
        typer.Option(
            help="How much every worker pushes and pulls in each round, such as 500KB or 2GiB."
        ),
    ] = "102MB",
    workers: Annotated[int, typer.Option(help="Worker processes.")] = 4,
    servers: Annotated[int, typer.Option(help="Server processes.")] = 1,
    replicas: Annotated[int, typer.Option(help="Copies of every slice on other servers.")] = 0,
    link: Annotated[
        str, typer.Option(help="How processes are linked: local (shared memory) or tcp.")
    ] = "local",
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place",
            help="Read and write shared memory without copying.",
        ),
    ] = False,
    digest: flags.Digest = "auto",
    devices: Annotated[
        str,
        typer.Option(
            help="Where the workers' parameters are: cpu, or CUDA devices such as cuda:0,cuda:1."
        ),
    ] = CPU,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds to measure; default: as many as take about a second.")
    ] = None,
    warmup: Annotated[int, typer.Option(help="Rounds before measuring begins.")] = 5,
    bare: Annotated[
        bool,
        typer.Option(
            help="Also measure the bare loop: the same processes and copies, without polyrhythm's"
            " protocol."
        ),
    ] = True,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
    debug: flags.Debug = False,
) -> None:
    """Measure rounds of pushes and pulls, and verify their sum. Nothing is computed."""
    nbytes = pushed_nbytes(size)
    if (rounds is not None and rounds < 1) or warmup < 0:
        raise UsageError("--rounds must be at least 1 and --warmup at least 0")
    measured = rounds or _rounds_for(nbytes)
    spec = JobSpec(
        job=uuid.uuid4().hex,
        name="exchange",
        workers=workers,
        servers=servers,
        replicas=replicas,
        rounds=warmup + measured,
        in_place=in_place,
        link=link,
        updater="addition",
        options={
            "nbytes": str(nbytes),
            "warmup": str(warmup),
            "workers": str(workers),
            "in_place": "yes" if in_place else "no",
        },
    )
    given = {"workers": workers, "servers": servers, "link": link, "digest": digest}
    check_values(train, given)
    check_spec(spec)
    if in_place and set(parse_devices(devices)) != {CPU}:
        raise UsageError("--in-place reads the server's memory: it needs --devices cpu")
    options = ProcessOptions(link=link, digest=digest, devices=devices, debug=debug)
    rate = _measure(spec, options)
    result: dict[str, Any] = {
        "nbytes": nbytes,
        "workers": workers,
        "servers": servers,
        "replicas": replicas,
        "link": link,
        "in_place": in_place,
        "digest": digest,
        "devices": devices,
        "rounds": measured,
        "rounds_per_s": round(rate, 3),
        "gb_per_s": round(2 * rate * nbytes * workers / 1e9, 3),
    }
    if bare and link in ("local", "tcp"):
        limit = _bare(spec, nbytes, measured, warmup, link)
        result["limit_rounds_per_s"] = round(limit, 3)
        result["share_of_limit"] = round(rate / limit, 3)
    if json_:
        print(json.dumps(result))
    else:
        for key, value in result.items():
            print(f"{key:20} {value}")


@bench.command(cls=Command)
def slices(
    size: Annotated[
        str, typer.Option(help="The size of the model, such as 21MB: how much a worker pushes.")
    ] = "21MB",
    workers: Annotated[int, typer.Option(help="Worker processes.")] = 2,
    servers: Annotated[int, typer.Option(help="Server processes.")] = 1,
    link: Annotated[str, typer.Option(help="How processes are linked: tcp or local.")] = "tcp",
    rounds: Annotated[
        int | None,
        typer.Option(help="Rounds to measure per size; default: as many as take about a second."),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
    debug: flags.Debug = False,
) -> None:
    """Measure which size of slices is best (--slice-size).

    A slice takes as long as its bytes and alpha bytes more. Between machines, --slice-size auto makes
    slices of sqrt(M alpha / N) bytes, for a model of M bytes and N workers, with the alpha of the paper
    (120,000). If another size is best here, give it with --slice-size.
    """
    nbytes = pushed_nbytes(size)
    if nbytes < _LEAST_SWEPT:
        raise UsageError(f"--size {size} is too small: sizes of slices are compared from 1MiB on")
    if rounds is not None and rounds < 1:
        raise UsageError("--rounds must be at least 1")
    check_values(train, {"workers": workers, "servers": servers, "link": link})
    measured = rounds or max(10, _rounds_for(nbytes) // 4)
    times: list[tuple[float, float]] = []
    for slice_nbytes in _swept(nbytes // max(1, servers)):
        options = {"nbytes": str(nbytes), "warmup": "5", "workers": str(workers), "in_place": "no"}
        spec = JobSpec(
            job=uuid.uuid4().hex,
            name="exchange",
            workers=workers,
            servers=servers,
            rounds=5 + measured,
            slice_nbytes=slice_nbytes,
            link=link,
            updater="addition",
            options=options,
        )
        check_spec(spec)
        times.append((slice_nbytes, 1 / _measure(spec, ProcessOptions(link=link, debug=debug))))
        if not json_:
            print(
                f"{slice_nbytes / 1024:8,.0f} KiB  {times[-1][1] * 1e3:9.2f} ms a round", flush=True
            )
    alpha = fit_alpha(times, workers)
    best, fastest = best_nbytes(nbytes, workers, alpha), min(times, key=lambda pair: pair[1])[0]
    if json_:
        found = {"alpha": round(alpha), "best_nbytes": round(best), "fastest_nbytes": fastest}
        given = {"nbytes": nbytes, "workers": workers, "servers": servers, "link": link}
        print(json.dumps({**given, **found, "seconds": times}))
        return
    print(f"alpha         a slice costs as much as {alpha:,.0f} bytes (in the paper: {ALPHA:,.0f})")
    if alpha > 0:
        print(f"best size     {best / 1024:,.0f} KiB by sqrt(M alpha / N)")
    else:
        print("best size     any, because here small slices cost no more than large ones")
    print(f"fastest size  {fastest / 1024:,.0f} KiB")


_LEAST_SWEPT = 2**20


def _swept(most: int) -> list[int]:
    """Sizes of slices, from 16 KiB to 8 MiB, of which the largest is at most `most` bytes."""
    return [2**power for power in range(14, 24) if 2**power <= max(2**16, most)]


def _measure(spec: JobSpec, options: ProcessOptions) -> float:
    with tempfile.TemporaryDirectory(prefix="polyrhythm-bench-") as folder:
        requests = child_requests(spec, Path(folder), options)
        watch = EngineWatch(say=lambda line: print(line, file=sys.stderr))
        run = choose_engine().run(requests, watch)
        lines = list(read_journal(Path(folder) / "journal.jsonl"))
    if run.interrupted:
        raise typer.Exit(128 + run.interrupted)
    if run.failed is not None or run.worker_failures:
        raise JobFailed(run.failed or "; ".join(run.worker_failures.values()))
    reports = final_reports(lines, spec.workers)
    return float(statistics.median(report["rounds"] / report["took_s"] for report in reports))


def final_reports(lines: list[dict[str, Any]], workers: int) -> list[dict[str, Any]]:
    """The last report of each worker, from the lines of the journal."""
    evicted = sorted({line["name"] for line in lines if line["what"] == "evicted"})
    if evicted:
        raise JobFailed(
            f"{', '.join(evicted)} did not answer in time and missed rounds: nothing was measured;"
            " try again when fewer processes compete for this machine's cores"
        )
    reports = [line["metrics"] for line in lines if line["what"] == "reported"]
    if len(reports) != workers or not all(report["right"] for report in reports):
        raise JobFailed("the final sum is not the sum of all contributions")
    return reports


def _bare(spec: JobSpec, nbytes: int, rounds: int, warmup: int, link: str) -> float:
    command = [sys.executable, "-m", "polyrhythm.engines.bare_exchange"]
    command += ["--nbytes", str(nbytes), "--workers", str(spec.workers), "--rounds", str(rounds)]
    command += ["--warmup", str(warmup), "--link", link]
    if spec.in_place:
        command.append("--in-place")
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment([1])
    )
    if done.returncode:
        raise JobFailed(f"the bare loop failed: {done.stderr.strip()}")
    return float(json.loads(done.stdout)["rounds_per_s"])
