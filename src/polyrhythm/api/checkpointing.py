"""Checks the flags about checkpoints and stores before any process is started. The modules of stores
are imported only if the user gives a store, so that a command without one can begin at once."""

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from polyrhythm.api.checks import check_choice
from polyrhythm.api.hosts import Here
from polyrhythm.core.supervision import ON_LOSS
from polyrhythm.core.values import Schedule
from polyrhythm.errors import StoreError, UsageError
from polyrhythm.wire.messages import JobSpec

if TYPE_CHECKING:
    from polyrhythm.store.checkpoints import Checkpoint


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
