"""The stores over which the conformance suite runs: a folder, memory and a real S3 server."""

import uuid
from pathlib import Path

import pytest

from polyrhythm.store.objects import Store, open_store


@pytest.fixture(params=["folder", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        return str(request.getfixturevalue("s3_url"))
    return str(tmp_path) if request.param == "folder" else f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def store(url: str) -> Store:
    return open_store(url)
