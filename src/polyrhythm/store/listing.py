"""The checkpoints in a store: listing them with their faults, and deleting old ones.

A listing reads the manifests and the sizes of the files. It does not read their contents, so it is
quick in a store with many checkpoints; `checkpoints.verify` reads every byte of one checkpoint.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from polyrhythm.errors import DamagedCheckpoint, StoreError, StoreFull
from polyrhythm.store.checkpoints import FOLDER, MANIFEST, Checkpoint, load, objects_of, path_of
from polyrhythm.store.manifest import OtherVersion
from polyrhythm.store.objects import ObjectInfo, Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Listed:
    """A checkpoint in a listing. `fault` is None if its manifest is valid and its files have the
    right sizes. The contents of the files are not read."""

    number: int
    checkpoint: Checkpoint | None
    fault: str | None
    other_version: bool = False
    incomplete: bool = False
    """Whether the checkpoint has no manifest: it is being written, or writing it was
    interrupted."""

    @property
    def state(self) -> str:
        """The state of the checkpoint in a word: `whole`, `incomplete`, `damaged` or `other
        version`."""
        if self.fault is None:
            return "whole"
        if self.incomplete:
            return "incomplete"
        return "other version" if self.other_version else "damaged"


def listing(store: Store) -> list[Listed]:
    """All checkpoints, oldest first. Their faults are found by names and sizes of files alone."""
    return [_listed(store, number, infos) for number, infos in sorted(objects_of(store).items())]


def prune(store: Store, keep: int) -> list[int]:
    """Delete every checkpoint that is older than the newest `keep` whole ones, even if it is
    damaged or incomplete. Return the numbers that were deleted. A checkpoint of another version of
    polyrhythm is not deleted."""
    if keep < 1:
        raise StoreError(f"cannot keep {keep} checkpoints: keep at least 1")
    listed = listing(store)
    whole = [each.number for each in listed if each.fault is None]
    if len(whole) < keep:
        return []
    oldest = whole[-keep]
    gone = [each.number for each in listed if each.number < oldest and not each.other_version]
    for number in gone:
        _delete(store, number)
    return gone


def with_room(store: Store, number: int, write: Callable[[], T]) -> T:
    """Write a part of checkpoint `number`, and return the result of `write`. While the store has no
    room, delete the oldest earlier checkpoint, but never the newest whole one. Several servers may
    do this at the same time."""
    while True:
        try:
            return write()
        except StoreFull:
            if not _delete_oldest(store, number):
                raise


def _delete_oldest(store: Store, before: int) -> bool:
    """Delete the least valuable checkpoint before this number: an incomplete one, or else the
    oldest. Returns False if none may be deleted."""
    earlier = [each for each in listing(store) if each.number < before and not each.other_version]
    whole = [each.number for each in earlier if each.fault is None]
    worthless = [each.number for each in earlier if each.incomplete]
    older = [each.number for each in earlier if whole and each.number < whole[-1]]
    candidates = [*worthless, *older]
    if candidates:
        _delete(store, candidates[0])
    return bool(candidates)


def _delete(store: Store, number: int) -> None:
    # delete the manifest first: without it the checkpoint does not exist
    store.delete([path_of(number, MANIFEST)])
    store.delete_under(f"{FOLDER}/{number:08d}")


def _listed(store: Store, number: int, infos: list[ObjectInfo]) -> Listed:
    if path_of(number, MANIFEST) not in {info.name for info in infos}:
        return Listed(number, None, "it has no manifest", incomplete=True)
    try:
        checkpoint = load(store, number)
    except OtherVersion as error:
        return Listed(number, None, str(error), other_version=True)
    except DamagedCheckpoint as error:
        return Listed(number, None, str(error))
    sizes = {info.name: info.nbytes for info in infos}
    for entry in (*checkpoint.tensor_files, checkpoint.manifest.record):
        there = sizes.get(path_of(number, entry.name))
        url = store.url_of(path_of(number, entry.name))
        if there is None:
            return Listed(number, checkpoint, f"{url} is missing")
        if there != entry.nbytes:
            fault = f"{url} is damaged: it has {there} bytes instead of {entry.nbytes}"
            return Listed(number, checkpoint, fault)
    return Listed(number, checkpoint, None)
