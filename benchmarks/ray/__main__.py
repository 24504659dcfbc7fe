"""Measures jobs on a Ray cluster, beside the local engine and beside plain Ray.

    python -m benchmarks.ray --all [--repeat 3] [--json out.json] [--docs]
    python -m benchmarks.ray --only exchange,starting
    python -m benchmarks.ray --only rayps --json out.json --go-on

A cluster of one node is started for the benchmark. `exchange`: rounds per second with four workers and
one server, for both engines in turn. `starting`: seconds until four workers have made their first
step, beside four new actors that import torch, and four that also make an optimizer. `returning`:
seconds from the death of a worker until it contributes again, beside a new actor that imports torch.
`rayps`: the experiments of RayPS's Figs. 5 and 6, beside Ray's documented parameter server; this needs
MNIST in `$POLYRHYTHM_DATA/mnist`. All figures but those of `rayps` are medians of up to `--repeat`
runs: a study that takes long makes fewer, so that `--all` takes about a quarter of an hour on a quiet
machine. `--go-on` keeps the figures that the file of `--json` has, and measures only the others: so a
run that was interrupted is continued. `--docs` writes the tables into README.md of this folder, and
draws the picture there.
"""

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault(
    "RAY_AUTH_TOKEN", secrets.token_hex(32)
)  # Ray would write one to the home folder

os.environ.pop(
    "PYTHONDONTWRITEBYTECODE", None
)  # no actor compiles modules that others have compiled

import ray

from benchmarks import readme, report
from benchmarks.ray import studies
from benchmarks.ray.picture import draw
from polyrhythm.engines.environment import BEYOND_CACHE

HERE = Path(__file__).parent
DOCUMENT = HERE / "README.md"
PICTURE = HERE / "rayps.svg"
STUDIES = ("exchange", "starting", "returning", "rayps")
CPUS = 16


@contextlib.contextmanager
def cluster() -> Iterator[None]:
    """Start Ray for this program alone, with the settings that docs/ray.md recommends. It leaves no
    files or processes."""
    folder = tempfile.mkdtemp(prefix="ray-bench-")
    os.environ.update(BEYOND_CACHE)
    try:
        ray.init(
            address="local",
            num_cpus=CPUS,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="critical",
            object_store_memory=1 << 28,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
            _system_config={"worker_niceness": 0},
        )
        _await_idle_workers()
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def _await_idle_workers() -> None:
    """Ray starts a Python process for each CPU beforehand, which takes both cores of a small machine for
    half a minute."""
    wait: Any = ray.remote(lambda: time.sleep(1.0))
    ray.get([wait.remote() for _ in range(CPUS)])


def measure(chosen: list[str], repeat: int, found: dict[str, Any], file: Path | None) -> None:
    """Add the figures of the chosen studies to `found`, except those that it has. If `file` is given,
    everything is written to it after each study, and after each run of `rayps`."""

    def keep() -> None:
        if file is not None:
            file.write_text(json.dumps(found, indent=1))

    simple = {
        "exchange": studies.exchange,
        "starting": studies.starting,
        "returning": studies.returning,
    }
    with cluster():
        for name, study in simple.items():
            if name in chosen and name not in found:
                found[name] = study(repeat)
                keep()
        if "rayps" in chosen:
            studies.rayps(found.setdefault("rayps", {}), keep)


def table(found: dict[str, Any]) -> str:
    """How a job on the cluster compares with the local engine and with plain actors."""
    rows = [
        f"Medians of up to {found['repeat']} ({found['machine']}):",
        "",
        "| | polyrhythm on Ray | beside it | |",
        "|---|---|---|---|",
    ]
    for size, rates in found.get("exchange", {}).items():
        rows.append(
            f"| exchange, {size}: rounds per second | {rates['ray']:,.1f} | {rates['local']:,.1f}, the"
            f" local engine | {rates['ratio']:.0%} |"
        )
    if (start := found.get("starting")) is not None:
        rows.append(
            f"| until all of {start['workers']} workers have made a step | {start['job_s']:.1f} s |"
            f" {start['actors_s']:.1f} s, new actors that import torch (and make an optimizer:"
            f" {start['optimizers_s']:.1f} s) | {start['more_s']:+.1f} s |"
        )
    if (back := found.get("returning")) is not None:
        rows += [
            f"| until a killed worker contributes again | {back['return_s']:.1f} s |"
            f" {back['actor_s']:.1f} s, a new actor that imports torch | {back['more_s']:+.1f} s |",
            f"| longest step of another worker meanwhile | {back['pause_ms']:.0f} ms |"
            f" {back['usual_ms']:.0f} ms, in the second before | |",
        ]
    return "\n".join(rows)


def rayps_table(found: dict[str, Any]) -> str:
    """RayPS's experiments: seconds, and the accuracy afterwards."""
    counts = [str(count) for count in studies.COUNTS]
    rows = [
        f"{found['steps']} steps of all workers together, batches of {found['batch']}, rate 0.1,"
        f" steps of a worker last at least {found['pace_ms']} ms; seconds, and accuracy afterwards:",
        "",
        "| | " + " | ".join(counts) + " |",
        "|---|" + "---|" * len(counts),
    ]
    for name, values in found.items():
        if isinstance(values, dict):
            cells = [f"{each['seconds']:.1f} s, {each['accuracy']:.1%}" for each in values.values()]
            rows.append(f"| {name} | " + " | ".join(cells) + " |")
    sync, apart = (
        row["8"]["seconds"] / row["2"]["seconds"]
        for row in (found[f"workers, polyrhythm, {name}"] for name in ("sync", "async"))
    )
    rows += ["", f"8 workers take {sync:.2f} (sync) and {apart:.2f} (async) times as long as 2."]
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--all", action="store_true")
    which.add_argument("--only", default="", help=f"some of {', '.join(STUDIES)}")
    parser.add_argument("--repeat", type=report.at_least_one, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--go-on", action="store_true")
    parser.add_argument("--docs", action="store_true")
    args = parser.parse_args()
    chosen = list(STUDIES) if args.all else args.only.split(",")
    if unknown := sorted(set(chosen) - set(STUDIES)):
        parser.error(f"there is no study {', '.join(unknown)}: choose from {', '.join(STUDIES)}")
    if "rayps" in chosen and "POLYRHYTHM_DATA" not in os.environ:
        parser.error("rayps needs MNIST in $POLYRHYTHM_DATA/mnist")
    if args.go_on and args.json is None:
        parser.error("--go-on needs --json FILE, in which the earlier figures are")
    found: dict[str, Any] = {"repeat": args.repeat}
    anew = not (args.go_on and args.json.exists())
    if not anew:
        found = json.loads(args.json.read_text())
    measure(chosen, args.repeat, found, args.json)
    found["machine"] = report.machine(anew=anew)
    tables = {}
    if found.keys() & set(STUDIES) - {"rayps"}:
        tables["ray"] = table(found)
    if "rayps" in found:
        tables["rayps"] = rayps_table(found["rayps"])
    report.give(found, "\n\n".join(tables.values()), args.json)
    if args.docs:
        if "rayps" in found:
            PICTURE.write_text(draw(found["rayps"]))
            tables["rayps"] += f"\n\n![The same as curves]({PICTURE.name})"
        for name, text in tables.items():
            readme.write(name, text, DOCUMENT)


if __name__ == "__main__":
    main()
