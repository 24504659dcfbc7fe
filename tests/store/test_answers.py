"""Answers of an object store, valid or invalid, are reported in one line.

A small HTTP server gives the answers, because SeaweedFS cannot: it creates a missing bucket, and
cannot be told to fail.
"""

import http.server
import threading
from collections.abc import Iterator

import pytest

from polyrhythm.errors import ObjectMissing, StoreError
from polyrhythm.store.objects import Store, open_store


class Answers(http.server.ThreadingHTTPServer):
    """An HTTP server that gives the same answer to every request, and counts the requests."""

    status = 200
    body = b""
    requests = 0


class Handler(http.server.BaseHTTPRequestHandler):
    server: Answers

    def answer(self) -> None:
        self.server.requests += 1
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(self.server.body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answers]:
    with Answers(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "word")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def store(answers: Answers) -> Store:
    return open_store("s3://bucket/path")


def error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>A text.</Message></Error>".encode()


def lines(store: Store) -> dict[str, str]:
    """Return the error line of each operation. All operations fail."""
    operations = {
        "put": lambda: store.put("a", b"x"),
        "large put": lambda: store.put("a", [bytes(5_000_000)] * 3),
        "create": lambda: store.create("a", b"x"),
        "get": lambda: store.get("a"),
        "list": store.list,
    }
    found = {}
    for name, operation in operations.items():
        with pytest.raises(StoreError) as caught:
            operation()
        found[name] = str(caught.value)
        assert "\n" not in found[name] and "s3://bucket/path" in found[name]
        assert not isinstance(caught.value, ObjectMissing), found[name]
    return found


def test_a_bucket_that_is_missing_is_named(answers: Answers, store: Store) -> None:
    answers.status, answers.body = 404, error("NoSuchBucket")
    for line in lines(store).values():
        assert line.endswith("the bucket does not exist")


def test_a_fault_of_the_store_is_named_after_a_few_attempts(answers: Answers, store: Store) -> None:
    answers.status, answers.body = 503, error("SlowDown")
    with pytest.raises(StoreError, match=r"an internal error \(503 SlowDown\)"):
        store.put("a", b"x")
    assert answers.requests == 4


@pytest.mark.parametrize(("status", "code"), [(403, "AccessDenied"), (401, "Unauthorized")])
def test_an_action_that_is_not_allowed_is_named(
    answers: Answers, store: Store, status: int, code: str
) -> None:
    answers.status, answers.body = status, error(code)
    for name, line in lines(store).items():
        assert "the store refuses these credentials" in line, name


@pytest.mark.parametrize("status", [400, 405, 411])
def test_a_refused_request_is_named(answers: Answers, store: Store, status: int) -> None:
    answers.status, answers.body = status, error("InvalidRequest")
    for name, line in lines(store).items():
        assert f"the store refuses the request ({status} InvalidRequest)" in line, name


def test_an_answer_without_sense_is_one_line(answers: Answers, store: Store) -> None:
    answers.body = b"\x00\xff<html>" * 100
    with pytest.raises(StoreError) as caught:
        store.list()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    with pytest.raises(StoreError):
        store.put("a", [bytes(5_000_000)] * 3)
