"""Checks the flags of a command before any process is started. Each failure is one line of
output.

Checks the flags about checkpoints and stores before any process is started. The modules of stores
are imported only if the user gives a store, so that a command without one can begin at once.
"""

import math
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from polyrhythm.api.hosts import Here
from polyrhythm.core.kinds import steps_on_servers, steps_on_workers
from polyrhythm.core.link_kinds import AUTO, TCP, may_have_references
from polyrhythm.core.metrics import parse_best
from polyrhythm.core.migration import DELIVERING, sharing_fault
from polyrhythm.core.names import is_loopback
from polyrhythm.core.supervision import ON_LOSS
from polyrhythm.core.sync.registry import choose_policy, traits_of
from polyrhythm.core.values import Schedule
from polyrhythm.errors import StoreError, UsageError
from polyrhythm.learn.staging import Staging
from polyrhythm.runtime.choices import (
    ASYNC_MOMENTA,
    ASYNC_SCALES,
    DIGESTS,
    LINKS,
    ON_ERROR,
    ON_NAN,
    PUSHES,
    UPDATERS,
    WEIGHTS,
    WIRE_DTYPES,
)
from polyrhythm.wire.messages import JobSpec

if TYPE_CHECKING:
    from polyrhythm.store.checkpoints import Checkpoint


_LINKS_FROM_OUTSIDE = (AUTO, TCP.name)
"""The links with which a worker or server can join. `local` is not one of them, because the first
connection to a lead on another host uses TCP."""


def check_spec(spec: JobSpec, link: str, digest: str) -> None:
    """Raise an error if the settings of a job are wrong or contradict each other."""
    choose_policy(spec)
    if spec.keep_best:
        try:
            parse_best(spec.keep_best)
        except ValueError as error:
            raise UsageError(f"--keep-best is {spec.keep_best!r}: {error}") from None
    for flag, value in (
        ("--workers", spec.workers),
        ("--servers", spec.servers),
        ("--local-steps", spec.local_steps),
        ("--rounds", spec.rounds),
        ("--epochs", spec.epochs),
        ("--points", spec.points),
        ("--most-steps", spec.most_steps),
        ("--probe-points", spec.probe_points),
        ("--min-batch", spec.min_batch),
    ):
        if value is not None and value < 1:
            raise UsageError(f"{flag} is {value}: it must be at least 1")
    for flag, text, known in (
        ("--link", link, LINKS),
        ("--digest", digest, DIGESTS),
        ("--wire-dtype", spec.wire_dtype, WIRE_DTYPES),
        ("--push", spec.push, PUSHES),
        ("--async-scale", spec.async_scale, ASYNC_SCALES),
        ("--async-momentum", spec.async_momentum, ASYNC_MOMENTA),
        ("--weights", spec.weights, WEIGHTS),
        ("--on-error", spec.on_error, ON_ERROR),
        ("--on-nan", spec.on_nan, ON_NAN),
        ("--updater", spec.updater, UPDATERS),
    ):
        check_choice(flag, text, known)
    _check_targets(spec)
    if not 0 < spec.lead_timeout_s < math.inf:
        raise UsageError(f"--lead-timeout is {spec.lead_timeout_s}: give seconds, such as 120")
    if not 0 < spec.start_timeout_s < math.inf:
        raise UsageError(f"--start-timeout is {spec.start_timeout_s}: give seconds, such as 60")
    if spec.seed < 0:
        raise UsageError(f"--seed is {spec.seed}: it must be at least 0")
    if spec.local_steps != 1 and not steps_on_workers(spec.kind):
        raise UsageError("--local-steps needs --kind local")
    if spec.respawn and spec.on_error == "end":
        raise UsageError("--respawn restarts a worker that fails, so it needs --on-error go-on")
    if not 0 <= spec.replicas < spec.servers:
        most = f"give 0 to {spec.servers - 1}" if spec.servers > 1 else "give 0"
        raise UsageError(
            f"--replicas is {spec.replicas}: each copy of a slice needs another server, and --servers is"
            f" {spec.servers}; {most}"
        )
    if spec.in_place:
        _check_in_place(spec, link)
    Staging.parse(spec.staging, spec.workers, spec.servers)


def without_effect(spec: JobSpec) -> list[str]:
    """Messages about the given options that have no effect in this job."""
    if not traits_of(spec.sync).rounds:
        return []
    given = (
        ("--async-scale", spec.async_scale, "auto"),
        ("--async-momentum", spec.async_momentum, "round"),
    )
    chosen = [f"{flag} {value}" for flag, value, default in given if value != default]
    return [
        f"{each} has no effect: under --sync {spec.sync} a round is one step of the optimizer"
        for each in chosen
    ]


def without_goal(spec: JobSpec) -> list[str]:
    """A message if the job never ends by itself. A job of `polyrhythm.serve` often has no goal."""
    goals = (spec.rounds, spec.epochs, spec.points, spec.target_change, spec.max_seconds)
    if spec.served or spec.targets or any(goal is not None for goal in goals):
        return []
    return [
        "the job has no goal, so it trains until Ctrl-C or 'polyrhythm stop' ends it; --epochs 10,"
        " for example, would be a goal"
    ]


def check_sharing(spec: JobSpec, workers_here: int) -> None:
    """Raise an error if `--share-data` contradicts another option. `workers_here`: how many workers
    this command starts. A worker that joins from elsewhere has its own `--share-data`."""
    if spec.share_data and (why := sharing_fault(spec, traits_of(spec.sync))) is not None:
        raise UsageError(f"--share-data has no effect: {why}")
    travels = spec.data_private and spec.migrate in DELIVERING
    if travels and not spec.share_data and workers_here == spec.workers:
        raise UsageError(
            f"--data-private and --migrate {spec.migrate} contradict each other: points that only one"
            " worker has leave it only with --share-data; give that flag, or leave --migrate out"
        )


def check_choice(flag: str, text: str, known: Sequence[str]) -> None:
    if text not in known:
        raise UsageError(f"{flag} {text!r} is not known: choose one of {', '.join(known)}")


def _check_targets(spec: JobSpec) -> None:
    seconds = spec.max_seconds
    if spec.target_change is not None and not 0 < spec.target_change < math.inf:
        raise UsageError(f"--target-change is {spec.target_change}: give a number, such as 0.001")
    if seconds is not None and not 0 < seconds < math.inf:
        raise UsageError(f"--max-seconds is {seconds}: give seconds, such as 60")


def _check_in_place(spec: JobSpec, link: str) -> None:
    rounds = traits_of(spec.sync).rounds
    ok = rounds and spec.servers == 1 and steps_on_servers(spec.kind)
    if not ok or not may_have_references(link) or spec.wire_dtype != "same":
        raise UsageError(
            "--in-place reads the server's own memory: it needs --servers 1, --kind gradient,"
            " a policy with rounds (bsp), a local link and --wire-dtype same"
        )


def check_host(host: str, insecure: bool) -> None:
    if is_loopback(host) or insecure:
        return
    raise UsageError(
        f"--host {host} can be reached from other machines, and links are not encrypted yet: say"
        " --insecure if everyone who can watch that network may read this job"
    )


def check_way_in(connect: str, link: str, digest: str) -> tuple[str, int]:
    """Check the flags with which `polyrhythm worker` and `polyrhythm server` join a job. Returns
    the address of the lead."""
    address = parse_address(connect)
    if address is None:
        what = f"--connect {connect!r} is not understood" if connect else "--connect is missing"
        raise UsageError(
            f"{what}: give HOST:PORT of a running job, as 'polyrhythm train' says at its start and"
            " 'polyrhythm status' repeats"
        )
    check_choice("--link", link, _LINKS_FROM_OUTSIDE)
    check_choice("--digest", digest, DIGESTS)
    return address


def check_port(port: int) -> None:
    if not 0 <= port < 65536:
        raise UsageError(f"--port is {port}: give one below 65536, or 0 for any free one")


def check_threads(threads: int | None) -> None:
    if threads is not None and threads < 1:
        raise UsageError(f"--threads is {threads}: it must be at least 1")


def parse_address(text: str) -> tuple[str, int] | None:
    """The host and the port in HOST:PORT; None if the text has another form."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        return None
    return host.strip("[]"), int(port)


def check_checkpoints(spec: JobSpec, store: str | None, here: Here) -> None:
    """Refuse flags about checkpoints that are wrong or contradict each other."""
    Schedule(spec.checkpoint_every)
    if spec.keep < 1:
        raise UsageError(f"--keep is {spec.keep}: it must be at least 1")
    kind = "folder" if store is None else _kind_of(store)
    if kind == "memory" and store is not None:
        raise UsageError(f"--store {store} is the memory of one process: give a folder or a bucket")
    check_choice("--on-loss", spec.on_loss, ON_LOSS)
    if spec.on_loss == "resume" and not spec.checkpoint_every:
        raise UsageError("--on-loss resume needs checkpoints: give --checkpoint-every 60s")
    wanted = store is not None or spec.checkpoint_every
    if wanted and here.servers < spec.servers and kind == "folder":
        raise UsageError(
            "servers on several hosts need a store that all of them reach: give"
            " --store s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH"
        )


def with_store(spec: JobSpec, store: str | None, runs_dir: Path) -> JobSpec:
    """Return the job with the store that the user gave, or without a store. The store must be
    writable, and no running job may use it. The store may have checkpoints of the job that resumes,
    but of no other job."""
    if store is None:
        return msgspec.structs.replace(spec, store="")
    from polyrhythm.api.stores import check_unused, is_same_store
    from polyrhythm.store.checkpoints import next_number
    from polyrhythm.store.objects import open_store

    url = str(Path(store).expanduser().resolve()) if "://" not in store else store
    check_unused(url, runs_dir)
    opened = open_store(url, make=True)
    opened.check()
    before = next_number(opened) - 1
    if before and not (spec.resume and is_same_store(url, spec.resume)):
        raise UsageError(
            f"--store {store} has checkpoints of another job: give every job a store of its own, or"
            f" continue that job with 'polyrhythm resume {store}'"
        )
    return msgspec.structs.replace(spec, store=url, checkpoints=before)


def continued(spec: JobSpec, store: str, checkpoint: "Checkpoint") -> JobSpec:
    """Return the job with the settings that let it continue from this checkpoint of the store."""
    from polyrhythm.store.checkpoints import next_number
    from polyrhythm.store.objects import open_store

    return msgspec.structs.replace(
        spec,
        job=uuid.uuid4().hex,
        init="",
        resume=store,
        resume_number=checkpoint.number,
        resume_round=checkpoint.manifest.round,
        checkpoints=next_number(open_store(store)) - 1,
    )


def in_run_folder(spec: JobSpec, here: Here, run_dir: Path) -> JobSpec:
    """Return the job with the folder of the run as its store if the user gave none. If some servers
    run on other hosts, the job has no store, because those servers cannot reach the folder."""
    if spec.store or here.servers < spec.servers:
        return spec
    return msgspec.structs.replace(spec, store=str(run_dir.resolve()))


def _kind_of(store: str) -> str:
    from polyrhythm.store.objects import kind_of

    try:
        return kind_of(store)
    except StoreError as error:
        raise UsageError(f"--store {store!r}: {error}") from None
