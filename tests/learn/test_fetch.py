"""Downloads from a local web server: files are verified, and a failed download leaves no files."""

import gzip
import hashlib
import io
import tarfile
import threading
import zipfile
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from polyrhythm.cli.main import make_app
from polyrhythm.errors import DataError
from polyrhythm.learn.data.catalogue import SETS, Archive, DataSet, File, Form, is_right
from polyrhythm.learn.data.fetch import fetch, obtain

CONTENT = {"a.bin": bytes(range(256)) * 9_000, "b.bin": b"few bytes"}


class Site:
    """A web server with some files. It counts the requests for each file."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = dict(CONTENT)
        self.asked: Counter[str] = Counter()
        self.torn: set[str] = set()
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.removeprefix("/")
                site.asked[name] += 1
                if name not in site.files:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(site.files[name])))
                self.end_headers()
                body = site.files[name]
                self.wfile.write(body[: len(body) // 2] if name in site.torn else body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


def file_of(name: str, content: bytes) -> File:
    return File(name, len(content), hashlib.sha256(content).hexdigest())


FORM = Form("complete", tuple(file_of(name, content) for name, content in CONTENT.items()))
TOYS = DataSet("toys", "for tests", ("http://127.0.0.1:9/",), (FORM,))


def assert_complete(folder: Path) -> None:
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == CONTENT


def test_fetch_downloads_file_by_file_and_reports_progress(site: Site, tmp_path: Path) -> None:
    told: dict[str, list[int]] = {}
    folder = fetch(
        TOYS, tmp_path, lambda f, n: told.setdefault(f.name, []).append(n), [site.address]
    )
    assert folder == tmp_path / "toys"
    assert_complete(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["toys"]
    for name, counts in told.items():
        assert counts == sorted(counts)
        assert (counts[0], counts[-1]) == (0, len(CONTENT[name]))
    assert told.keys() == CONTENT.keys()


@pytest.mark.parametrize("packed", ["toys.tar.gz", "toys.zip"])
def test_only_the_listed_files_are_unpacked_from_an_archive(
    site: Site, tmp_path: Path, packed: str
) -> None:
    members = {**CONTENT, "unwanted.bin": b"?"}
    buffer = io.BytesIO()
    if packed.endswith(".zip"):
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, content in members.items():
                archive.writestr(f"inner/{name}", content)
    else:
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            for name, content in members.items():
                info = tarfile.TarInfo(f"inner/{name}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    site.files = {packed: buffer.getvalue()}
    archived = Archive(file_of(packed, buffer.getvalue()), "inner")
    toys = DataSet("toys", "for tests", (), (FORM,), archived)
    assert_complete(fetch(toys, tmp_path, addresses=[site.address]))
    assert [path.name for path in tmp_path.iterdir()] == ["toys"]


@pytest.mark.parametrize("how", ["wrong", "longer", "shorter", "torn", "absent"])
def test_a_failed_download_leaves_no_files(site: Site, tmp_path: Path, how: str) -> None:
    """The download of the second file fails after the first file has arrived."""
    good = site.files["b.bin"]
    if how == "absent":
        del site.files["b.bin"]
    elif how == "torn":
        site.torn.add("b.bin")
    else:
        bad = {"wrong": b"other bits", "longer": good + b"!", "shorter": good[:-1]}
        site.files["b.bin"] = bad[how]
    with pytest.raises(DataError, match=rf"{site.address}b.bin"):
        fetch(TOYS, tmp_path, addresses=[site.address])
    assert list(tmp_path.iterdir()) == []
    site.files["b.bin"] = good
    site.torn.clear()
    assert_complete(fetch(TOYS, tmp_path, addresses=[site.address]))


def test_an_interrupted_download_leaves_no_files(site: Site, tmp_path: Path) -> None:
    def interrupt(file: File, done_nbytes: int) -> None:
        if done_nbytes > 1_000_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(TOYS, tmp_path, interrupt, [site.address])
    assert list(tmp_path.iterdir()) == []


def test_the_remains_of_a_killed_download_are_removed(site: Site, tmp_path: Path) -> None:
    part = tmp_path / ".toys.part"
    part.mkdir()
    (part / "a.bin").write_bytes(b"half")
    assert_complete(fetch(TOYS, tmp_path, addresses=[site.address]))
    assert not part.exists()


def test_fetch_tries_the_next_address_when_one_fails(site: Site, tmp_path: Path) -> None:
    addresses = [f"{site.address}nowhere/", "http://127.0.0.1:9/", site.address]
    assert_complete(fetch(TOYS, tmp_path, addresses=addresses))
    assert site.asked["nowhere/a.bin"] == site.asked["a.bin"] == 1


def test_only_damaged_files_are_fetched_again(site: Site, tmp_path: Path) -> None:
    folder = fetch(TOYS, tmp_path, addresses=[site.address])
    (folder / "b.bin").write_bytes(b"few bites")
    fetch(TOYS, tmp_path, addresses=[site.address])
    assert_complete(folder)
    assert site.asked == {"a.bin": 1, "b.bin": 2}


def test_concurrent_fetches_download_each_file_once(site: Site, tmp_path: Path) -> None:
    folders: list[Path] = []
    begin = threading.Barrier(4)

    def want() -> None:
        begin.wait()
        folders.append(obtain(TOYS, tmp_path, {}, addresses=[site.address]))

    threads = [threading.Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folders == [tmp_path / "toys"] * 4
    assert site.asked == {"a.bin": 1, "b.bin": 1}


def test_a_set_that_is_found_is_not_fetched(site: Site, tmp_path: Path) -> None:
    fetch(TOYS, tmp_path, addresses=[site.address])
    obtain(TOYS, tmp_path, {}, addresses=["http://127.0.0.1:9/"])


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match="cannot write to .*/file/sets: Not a directory"):
        fetch(TOYS, tmp_path / "file" / "sets")


def test_data_fetch_list_and_check(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_data: None
) -> None:
    """`data fetch` shows a progress bar for each file. Afterwards `data list` and `data check` find
    the files."""
    toys = DataSet("toys", "for tests", (site.address,), (FORM,))
    monkeypatch.setitem(SETS, "toys", toys)

    def call(*args: str) -> Any:
        done = CliRunner().invoke(make_app(), ["data", *args])
        assert done.exit_code == 0, done.output
        return done

    done = call("fetch", "toys")
    folder = tmp_path / "cache" / "polyrhythm" / "toys"
    assert_complete(folder)
    assert done.stdout == f"toys: {folder}\n"
    assert all(name in done.stderr for name in CONTENT)
    assert f"complete: {folder}" in call("list").stdout
    assert call("check", "toys").stdout.count("right  ") == 2
    assert call("fetch", "toys", "--quiet").stderr == ""
    assert site.asked == {"a.bin": 1, "b.bin": 1}


def test_the_same_content_compressed_differently_is_right(tmp_path: Path) -> None:
    content = b"abc" * 1000
    packed = gzip.compress(content, mtime=1)
    file = File(
        *("x.gz", len(packed), hashlib.sha256(packed).hexdigest()),
        hashlib.sha256(content).hexdigest(),
    )
    path = tmp_path / "x.gz"
    for right, data in (
        (True, packed),
        (True, gzip.compress(content, compresslevel=1, mtime=2)),
        (False, gzip.compress(content + b"d")),
        (False, packed[:-9]),
        (False, content),
    ):
        path.write_bytes(data)
        assert is_right(path, file) is right
