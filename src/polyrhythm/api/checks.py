"""Checks a job before any process is started: the combination of its settings, its checkpoints and
its store. Each failure is one line of output.

The modules of stores are imported only if the user gives a store, so that a command without one can
begin at once.
"""

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from polyrhythm.api.hosts import Here
from polyrhythm.api.saying import say
from polyrhythm.api.values import a_time, one_of, seconds
from polyrhythm.core.combinations import OF_COMMANDS, WITHOUT_EFFECT, broken, check, sharing_fault
from polyrhythm.core.link_kinds import AUTO, TCP
from polyrhythm.core.migration import DELIVERING
from polyrhythm.core.names import is_loopback
from polyrhythm.core.sync.registry import choose_policy, traits_of
from polyrhythm.core.values import Schedule
from polyrhythm.errors import StoreError, UsageError
from polyrhythm.io.addresses import await_listener
from polyrhythm.learn.slowdowns import Slowdowns
from polyrhythm.runtime.choices import DIGESTS
from polyrhythm.wire.messages import JobSpec

if TYPE_CHECKING:
    from polyrhythm.store.checkpoints import Checkpoint


_LINKS_FROM_OUTSIDE = (AUTO, TCP.name)
"""The links with which a worker or server can join. `local` is not one of them, because the first
connection to a lead on another host uses TCP."""


def check_spec(spec: JobSpec) -> None:
    """Raise an error if the settings of a job contradict each other."""
    choose_policy(spec)
    check(OF_COMMANDS, spec, traits_of(spec.sync))
    names = [target.metric for target in spec.targets]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"there are {names.count(name)} targets for {name}: give only one")
    Slowdowns.parse(spec.slowdowns, spec.workers, spec.servers)


def without_effect(spec: JobSpec) -> list[str]:
    """Messages about the given options that have no effect in this job."""
    return list(broken(WITHOUT_EFFECT, spec, traits_of(spec.sync)))


def check_sharing(spec: JobSpec, workers_here: int) -> None:
    """Raise an error if `--share-data` contradicts another option. `workers_here`: how many workers
    this command starts. A worker that joins from elsewhere has its own `--share-data`."""
    if spec.share_data and (why := sharing_fault(spec, traits_of(spec.sync))) is not None:
        raise UsageError(f"--share-data has no effect: {why}")
    travels = spec.data_private and spec.migrate in DELIVERING
    if travels and not spec.share_data and workers_here == spec.workers:
        raise UsageError(
            f"--migrate {spec.migrate} needs --share-data when --data-private is set: without it"
            f" no points leave their worker; add --share-data, or leave --migrate out"
        )


def check_host(host: str, insecure: bool) -> None:
    if is_loopback(host) or insecure:
        return
    raise UsageError(
        f"--host {host} can be reached from other machines, and links are not encrypted yet: give"
        " --insecure if everyone who can watch that network may read this job"
    )


def check_way_in(connect: str, link: str, digest: str, wait: str | None = None) -> tuple[str, int]:
    """Check the flags with which `polyrhythm worker` and `polyrhythm server` join a job. Returns
    the address of the lead."""
    address = parse_address(connect)
    if address is None:
        what = f"--connect {connect!r} is not understood" if connect else "--connect is missing"
        raise UsageError(
            f"{what}: give HOST:PORT of a running job, which 'polyrhythm train' prints at its start and"
            " 'polyrhythm status' shows"
        )
    one_of(_LINKS_FROM_OUTSIDE)("--link", link)
    one_of(DIGESTS)("--digest", digest)
    if wait is not None:
        a_time("--wait", wait)
    return address


def await_job(host: str, port: int, wait: str | None) -> None:
    """Wait until the job listens, at most for the time that the user gives (`--wait`)."""
    if wait is not None:
        say(f"waiting up to {wait} for the job at {host}:{port}")
        await_listener(host, port, seconds(wait))


def parse_address(text: str) -> tuple[str, int] | None:
    """The host and the port in HOST:PORT; None if the text has another form."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        return None
    return host.strip("[]"), int(port)


def check_checkpoints(spec: JobSpec, store: str | None, here: Here, *, apart: bool = False) -> None:
    """Refuse flags about checkpoints that are wrong or contradict each other. `apart`: the processes
    that this command starts are on several hosts."""
    Schedule.parse(spec.checkpoint_every)
    kind = "folder" if store is None else _kind_of(store)
    if kind == "memory" and store is not None:
        raise UsageError(f"--store {store} is the memory of one process: give a folder or a bucket")
    wanted = store is not None or spec.checkpoint_every
    if wanted and (apart or here.servers < spec.servers) and kind == "folder":
        raise UsageError(
            "servers on several hosts need a store that all of them can reach: give"
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
            f"--store {store} has checkpoints of another job: give every job its own store, or"
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
    """Return the job with the folder of the run as its store, if the user gave no store. If some
    servers run on other hosts, the job has no store, because those servers cannot reach the
    folder."""
    if spec.store or here.servers < spec.servers:
        return spec
    return msgspec.structs.replace(spec, store=str(run_dir.resolve()))


def _kind_of(store: str) -> str:
    from polyrhythm.store.objects import kind_of

    try:
        return kind_of(store)
    except StoreError as error:
        raise UsageError(f"--store {store!r}: {error}") from None
