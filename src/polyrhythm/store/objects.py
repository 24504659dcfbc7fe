"""A store of objects: a folder, S3, Google Cloud Storage, Azure, or the memory of this process.

An object is written as a whole, and read as a whole or in ranges. There is no compare-and-swap,
because a folder cannot do it. Instead, `create` succeeds for only one of several processes that
create the same object.

Open a store in the process that uses it, after the fork. obstore starts threads on first use, and a
process that is forked later would wait for them forever. Such a process gets a StoreError instead.
This module imports obstore only when a store is opened.
"""

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote

from polyrhythm.errors import StoreError, StoreFull
from polyrhythm.store.faults import explained, shown_url
from polyrhythm.store.remote import open_remote

if TYPE_CHECKING:
    from obstore.store import ObjectStore

Buffer: TypeAlias = bytes | bytearray | memoryview

_SCHEMES = {"file": "folder", "memory": "memory", "s3": "remote", "gs": "remote", "az": "remote"}
_PART_NBYTES = 8 * 1024 * 1024
"""Larger objects are sent to a remote store in parts of this size, a few at a time."""
_MOST_PARTS = 9_000
"""The most parts of an object. S3 accepts up to 10,000."""
_CONCURRENCY = 4

_used_in: int | None = None
"""The process in which obstore was first used. The threads of obstore exist in this process
only."""
_memories: dict[str, "ObjectStore"] = {}
_memories_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    name: str
    nbytes: int


def kind_of(url: str) -> str:
    """The kind of store that a URL names: `folder`, `memory` (of one process) or `remote`. Raise
    StoreError for an unknown scheme."""
    scheme, found, _ = url.partition("://")
    if not url.strip():
        raise StoreError("the store's URL is empty")
    if not found:
        return "folder"
    if scheme not in _SCHEMES:
        raise StoreError(
            f"cannot open {shown_url(url)}: a store is a folder, file://, s3://BUCKET/PATH,"
            f" gs://BUCKET/PATH, az://CONTAINER/PATH or memory://NAME"
        )
    return _SCHEMES[scheme]


def open_store(url: str, *, make: bool = False) -> "Store":
    """Open the store at a URL. `make`: make the folder if it does not exist.

    Call this in the process that uses the store, never before a fork. It does not contact a remote
    store; `Store.check` does."""
    kind = kind_of(url)
    if kind == "folder":
        return Store(shown_url(url), *_open_folder(url, make=make))
    if kind == "memory":
        from obstore.store import MemoryStore

        with _memories_lock:
            return Store(shown_url(url), _memories.setdefault(url, MemoryStore()))
    return Store(shown_url(url), open_remote(url))


class Store:
    """The objects under one URL. Every fault is raised as a StoreError of one line. Several threads
    may use a store."""

    def __init__(self, url: str, objects: "ObjectStore", folder: Path | None = None) -> None:
        """`url`: the URL without secrets, for messages. `folder`: the folder of the objects; None
        if they are not files."""
        self.url = url
        self.folder = folder
        self._objects = objects

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    def url_of(self, name: str) -> str:
        return f"{self.url.rstrip('/')}/{name}".rstrip("/")

    def check(self) -> None:
        """Raise StoreError if objects cannot be written and deleted here."""
        name = f"check-{os.urandom(8).hex()}"
        self.put(name, b"polyrhythm")
        self.delete([name])

    def put(self, name: str, data: Buffer | Sequence[Buffer]) -> None:
        """Write an object; an object of this name is replaced. The buffers are not copied, so they
        must not change before this returns. In a folder, the object's bytes are on the disk when
        this returns; its directory entry only after a later `create` in the same folder."""
        parts = [data] if isinstance(data, bytes | bytearray | memoryview) else data
        nbytes = sum(memoryview(part).nbytes for part in parts)
        in_parts = kind_of(self.url) == "remote" and nbytes > _PART_NBYTES
        try:
            with self._writing(name):
                self._objects.put(
                    name,
                    iter(parts),
                    use_multipart=in_parts,
                    chunk_size=max(_PART_NBYTES, -(-nbytes // _MOST_PARTS)),
                    max_concurrency=_CONCURRENCY,
                )
        except StoreFull:
            # some file systems report that they are full only when the file is synchronised
            with contextlib.suppress(StoreError):
                self.delete([name])
            raise

    def create(self, name: str, data: Buffer) -> bool:
        """Write an object if there is none of this name, and return True; otherwise return False.
        If several processes create the same object, only one gets True."""
        from obstore.exceptions import AlreadyExistsError

        with self._writing(name, sync_names=True):
            try:
                self._objects.put(name, iter([data]), mode="create")
            except AlreadyExistsError:
                return False
        return True

    def get(self, name: str) -> memoryview:
        """Read a whole object; raise ObjectMissing if there is none."""
        with self._using("read", name):
            return memoryview(self._objects.get(name).buffer())

    def nbytes_of(self, name: str) -> int:
        """The size of an object; raise ObjectMissing if there is none."""
        with self._using("read", name):
            return int(self._objects.head(name)["size"])

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Read the bytes [first, end) of each range."""
        if not ranges:
            return []
        starts, ends = [first for first, _ in ranges], [end for _, end in ranges]
        with self._using("read", name):
            found = self._objects.get_ranges(name, starts=starts, ends=ends)
        return [memoryview(part) for part in found]

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        """The objects under a folder-like prefix, sorted by name."""
        with self._using("list", prefix):
            self._must_exist()
            found = self._objects.list(prefix or None).collect()
        infos = [ObjectInfo(str(meta["path"]), int(meta["size"])) for meta in found]
        return sorted(infos, key=lambda info: info.name)

    def delete(self, names: Sequence[str]) -> None:
        """Delete these objects. An object that does not exist is ignored."""
        for name in names:
            with self._using("delete", name), contextlib.suppress(FileNotFoundError):
                self._objects.delete(name)

    def delete_under(self, prefix: str) -> None:
        """Delete all objects under a prefix; in a folder also the files of interrupted writes."""
        self.delete([info.name for info in self.list(prefix)])
        if self.folder is not None and (left := self.folder / prefix).is_dir():
            with explained("delete", self.url_of(prefix)):
                shutil.rmtree(left)

    @contextlib.contextmanager
    def _writing(self, name: str, *, sync_names: bool = False) -> Iterator[None]:
        """The context in which an object is written. In a folder, it waits until the bytes are on
        the disk. `sync_names`: wait also for the directory entries of this object and of all
        objects in the same folder."""
        with self._using("write", name):
            self._must_exist()
            yield
            if self.folder is not None:
                folders = Path(name).parents if sync_names else ()
                _sync(self.folder / name, *(self.folder / folder for folder in folders))

    @contextlib.contextmanager
    def _using(self, action: str, name: str) -> Iterator[None]:
        """Turn faults into a StoreError. Raise a StoreError at once in a forked process in which
        obstore would hang."""
        global _used_in
        if _used_in is None:
            _used_in = os.getpid()
        if _used_in != os.getpid():
            raise StoreError(
                f"cannot {action} {self.url_of(name)}: this process was forked from process"
                f" {_used_in} after process {_used_in} had used a store"
            )
        with explained(action, self.url_of(name)):
            yield

    def _must_exist(self) -> None:
        """Raise StoreError if the folder was removed. Otherwise obstore would make it again with
        the next object."""
        if self.folder is not None and not self.folder.is_dir():
            raise StoreError(f"the folder {self.url} does not exist (any more)")


def folder_of(url: str) -> Path | None:
    """The folder that a URL names; None if it names another kind of store."""
    if kind_of(url) != "folder":
        return None
    return Path(unquote(url.removeprefix("file://")) if "://" in url else url).expanduser()


def _open_folder(url: str, *, make: bool) -> "tuple[ObjectStore, Path]":
    from obstore.store import LocalStore

    path = folder_of(url)
    assert path is not None
    if "://" in url and not path.is_absolute():
        raise StoreError(f"cannot open {url}: it needs an absolute path, as in file:///data/jobs")
    if make:
        with explained("make the folder", str(path)):
            path.mkdir(parents=True, exist_ok=True)
    if not path.is_dir():
        what = "is not a folder" if path.exists() else "does not exist"
        raise StoreError(f"cannot open {path}: it {what}")
    with explained("open", str(path)):
        return LocalStore(path, automatic_cleanup=True), path


def _sync(*paths: Path) -> None:
    """Wait until these files or folders are on the disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
