"""All kinds of stores behave alike: an object is complete or absent, only one of several creators
succeeds, and a fault is reported in one clear line."""

import errno
import os
import threading
from pathlib import Path

import pytest

from polyrhythm.errors import ObjectMissing, StoreFull
from polyrhythm.store import objects
from polyrhythm.store.objects import Store, open_store


def test_an_object_is_read_as_it_was_written(store: Store) -> None:
    store.put("a/b", [b"one", bytearray(b"two"), memoryview(b"three")])
    assert store.get("a/b") == b"onetwothree"
    assert store.nbytes_of("a/b") == 11


def test_a_large_object_is_read_as_it_was_written(store: Store) -> None:
    parts = [bytes([number]) * 1_000_003 for number in range(20)]
    store.put("large", [memoryview(part) for part in parts])
    assert store.get("large") == b"".join(parts)
    ranges = [(0, 5), (1_000_000, 1_000_010), (19_999_999, 20_000_060)]
    assert store.get_ranges("large", ranges) == [b"".join(parts)[a:b] for a, b in ranges]


def test_an_empty_object_is_an_object(store: Store) -> None:
    store.put("empty", [])
    assert store.get("empty") == b""


def test_put_replaces_an_object(store: Store) -> None:
    store.put("a", b"long before")
    store.put("a", b"after")
    assert store.get("a") == b"after"


def test_create_leaves_an_object_as_it_is(store: Store) -> None:
    assert store.create("a/decision", b"first")
    assert not store.create("a/decision", b"second")
    assert store.get("a/decision") == b"first"


def test_an_object_that_does_not_exist_is_named(store: Store) -> None:
    with pytest.raises(ObjectMissing, match="a/b: it does not exist"):
        store.get("a/b")
    with pytest.raises(ObjectMissing):
        store.nbytes_of("a/b")
    with pytest.raises(ObjectMissing):
        store.get_ranges("a/b", [(0, 1)])


def test_list_names_objects_below_a_prefix(store: Store) -> None:
    for name in ("a/2", "a/1", "ab/1", "a/c/3"):
        store.put(name, name.encode())
    assert [(info.name, info.nbytes) for info in store.list("a")] == [
        ("a/1", 3),
        ("a/2", 3),
        ("a/c/3", 5),
    ]
    assert len(store.list()) == 4
    assert store.list("nothing") == []


def test_delete_removes_objects_and_ignores_absent_ones(store: Store) -> None:
    for name in ("a/1", "a/2", "b/1"):
        store.put(name, b"x")
    store.delete(["a/1", "a/none"])
    store.delete_under("b")
    assert [info.name for info in store.list()] == ["a/2"]


def test_check_leaves_nothing_behind(store: Store) -> None:
    store.check()
    assert store.list() == []


def test_two_openings_of_a_url_are_one_store(url: str) -> None:
    open_store(url).put("a", b"x")
    assert open_store(url).get("a") == b"x"


def test_one_of_many_creating_threads_wins(store: Store) -> None:
    for attempt in range(5):
        won: list[int] = []
        barrier = threading.Barrier(8)

        def create(number: int, name: str, barrier: threading.Barrier, won: list[int]) -> None:
            barrier.wait(30)
            if store.create(name, b"%d" % number):
                won.append(number)

        name = f"decision/{attempt}"
        threads = [
            threading.Thread(target=create, args=(number, name, barrier, won))
            for number in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(won) == 1
        assert store.get(name) == b"%d" % won[0]


def test_an_object_for_which_there_is_no_room_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems say only when a file is synchronised that they are full."""

    def full(*paths: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = open_store(str(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(objects, "_sync", full)
        with pytest.raises(StoreFull):
            store.put("a/b", b"0123456789")
    assert store.list() == []


def test_the_name_of_a_created_object_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash of the machine must not lose the manifest of a checkpoint whose files are written."""
    synced: list[Path] = []
    monkeypatch.setattr("polyrhythm.store.objects._sync", lambda *paths: synced.extend(paths))
    open_store(str(tmp_path)).create("checkpoints/1/manifest.json", b"{}")
    folders = [tmp_path, tmp_path / "checkpoints", tmp_path / "checkpoints" / "1"]
    assert set(folders) <= set(synced)
