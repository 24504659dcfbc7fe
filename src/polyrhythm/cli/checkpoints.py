"""`polyrhythm checkpoints`: lists the checkpoints of a run or a store, and verifies them."""

import datetime
import json
from typing import Annotated, Any

import typer

from polyrhythm.api.flags import RUNS, Debug, RunsDir
from polyrhythm.api.stores import url_of
from polyrhythm.cli.status import Json
from polyrhythm.core.values import shown
from polyrhythm.errors import DamagedCheckpoint, ObjectMissing, StoreError
from polyrhythm.store.checkpoints import verify
from polyrhythm.store.listing import Listed, listing
from polyrhythm.store.objects import Store, open_store

checkpoints = typer.Typer(no_args_is_help=True)
Target = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN|URL]",
        help="A run's name or folder, or the URL of a store; default: the newest run.",
    ),
]


@checkpoints.callback()
def _checkpoints() -> None:
    """Checkpoints of a run: list and verify them.

    A checkpoint holds the parameters, the optimizer state and the progress of a
    job at one moment. It is in the run's folder, or in the store that --store
    named: a folder, s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH.
    Credentials are taken from the usual variables (AWS_ACCESS_KEY_ID,
    AWS_PROFILE, AWS_ENDPOINT_URL, GOOGLE_APPLICATION_CREDENTIALS,
    AZURE_STORAGE_ACCOUNT_NAME and so on).

    Examples:

      polyrhythm checkpoints list

      polyrhythm checkpoints verify s3://bucket/jobs/mine
    """


@checkpoints.command("list")
def list_(
    target: Target = None, runs_dir: RunsDir = RUNS, json_: Json = False, debug: Debug = False
) -> None:
    """List checkpoints, oldest first, with times and sizes.

    A checkpoint is "whole" if its manifest is right and its files have the right
    sizes; 'checkpoints verify' also reads their bytes. One without a manifest is
    "incomplete": it is being written, or its writing was interrupted. Incomplete
    and damaged checkpoints are never loaded.

    Examples:

      polyrhythm checkpoints list

      polyrhythm checkpoints list mine --json
    """
    store = open_store(url_of(target, runs_dir))
    found = listing(store)
    if json_:
        print(json.dumps({"store": store.url, "checkpoints": [_described(one) for one in found]}))
        return
    if not found:
        print(shown(f"there is no checkpoint in {store.url}"))
        return
    print(shown(store.url))
    print(f"{'number':>8}  {'round':>8}  {'made':19}  {'size':>9}  {'servers':>7}  state")
    for one in found:
        print(shown(_row(one)))


@checkpoints.command("verify")
def verify_(
    target: Target = None,
    number: Annotated[
        int | None, typer.Option(help="Verify this checkpoint only; default: all of them.")
    ] = None,
    runs_dir: RunsDir = RUNS,
    debug: Debug = False,
) -> None:
    """Read every byte of the checkpoints and compare digests.

    The exit code is 0 if every checkpoint with a manifest is right, and 1 if one
    is damaged, if one was written by another version of polyrhythm, or if there is no checkpoint.

    Examples:

      polyrhythm checkpoints verify

      polyrhythm checkpoints verify mine --number 12
    """
    store = open_store(url_of(target, runs_dir))
    found = [one for one in listing(store) if number in (None, one.number)]
    if not found:
        which = "checkpoint" if number is None else f"checkpoint {number}"
        raise StoreError(f"there is no {which} in {store.url}")
    wrong = []
    for one in found:
        state, fault = _verified(store, one)
        print(shown(f"{one.number:>8}  {state}" + (f": {fault}" if fault else "")))
        if state in ("damaged", "other version"):
            wrong.append(str(one.number))
    if wrong:
        raise StoreError(f"these checkpoints cannot be loaded: {', '.join(wrong)}")
    if all(one.incomplete for one in found):
        raise StoreError(f"no checkpoint in {store.url} is complete")


def _verified(store: Store, one: Listed) -> tuple[str, str | None]:
    """Read the bytes of a checkpoint. Returns its state, and what is wrong with it (None if nothing
    is)."""
    if one.checkpoint is not None and one.fault is None:
        try:
            verify(store, one.checkpoint)
        except (DamagedCheckpoint, ObjectMissing) as error:
            return "damaged", str(error)
    return one.state, one.fault


def _described(one: Listed) -> dict[str, Any]:
    described: dict[str, Any] = {"number": one.number, "state": one.state, "fault": one.fault}
    if one.checkpoint is not None:
        manifest = one.checkpoint.manifest
        described |= {
            "round": manifest.round,
            "made_s": manifest.made_s,
            "nbytes": one.checkpoint.nbytes,
            "servers": len(manifest.files),
            "version": manifest.version,
            "job": manifest.job.job,
        }
    return described


def _row(one: Listed) -> str:
    state = one.state if one.fault is None else f"{one.state}: {one.fault}"
    if one.checkpoint is None:
        return f"{one.number:>8}  {'-':>8}  {'-':19}  {'-':>9}  {'-':>7}  {state}"
    manifest = one.checkpoint.manifest
    made = datetime.datetime.fromtimestamp(manifest.made_s).isoformat(" ", "seconds")
    size = _size(one.checkpoint.nbytes)
    return (
        f"{one.number:>8}  {manifest.round:>8}  {made:19}  {size:>9}"
        f"  {len(manifest.files):>7}  {state}"
    )


def _size(nbytes: int) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.1f} {name}"
    return f"{nbytes / 1e3:.1f} kB"
