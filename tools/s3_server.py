"""A real S3 server (SeaweedFS) for tests and benchmarks. It runs in a folder of its own, on free
ports."""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from obstore.exceptions import BaseError
from obstore.store import S3Store

BUCKET = "polyrhythm"
KEY, SECRET = "key-of-tests", "secret-of-tests"
_LISTENERS = ("master", "volume", "filer", "s3", "admin")
_START_S = 60
_ATTEMPTS = 5
_GRPC = 10_000
"""Every port of the server has a companion port for gRPC, whose number is higher by this amount."""


def binary() -> str | None:
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.is_file() else shutil.which("weed")


class S3Server:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self.log = folder / "log"

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._ports[_LISTENERS.index('s3')]}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with which a client reaches this server."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
        }

    def start(self) -> None:
        """Start the server. Later starts use the same ports. The first start tries several times,
        because another process may take a port after it was chosen."""
        if self._ports:
            self._start()
            return
        for attempt in range(_ATTEMPTS):
            self._ports = _free_ports(len(_LISTENERS))
            try:
                self._start()
                return
            except RuntimeError:
                if attempt == _ATTEMPTS - 1:
                    raise

    def _start(self) -> None:
        command = binary()
        assert command is not None
        data = self._folder / "data"
        data.mkdir(exist_ok=True)
        flags = [
            f"-dir={data}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-master.telemetry=false",
            "-webdav=false",
            "-admin.ui=false",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            f"-bucket={BUCKET}",
        ]
        listeners = zip(_LISTENERS, self._ports, strict=True)
        flags += [f"-{name}.port={port}" for name, port in listeners]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [command, "mini", *flags],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={**os.environ, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET},
            )
        self._wait_until_ready(self._process)

    def kill(self) -> None:
        """Kill the server with SIGKILL, to simulate a crash."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        """The server answers some time before its bucket exists."""
        deadline = time.monotonic() + _START_S
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"{self.endpoint}/healthz", timeout=1).close()
                if self._has_bucket():
                    return
            time.sleep(0.1)
        self.kill()
        raise RuntimeError(f"the S3 server did not start:\n{self.log.read_text()[-2000:]}")

    def _has_bucket(self) -> bool:
        store = S3Store(
            BUCKET,
            access_key_id=KEY,
            secret_access_key=SECRET,
            endpoint=self.endpoint,
            region="us-east-1",
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
        try:
            store.list().collect()
        except BaseError:
            return False
        return True


@contextlib.contextmanager
def running(folder: Path) -> Iterator[S3Server]:
    server = S3Server(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def _free_ports(count: int) -> list[int]:
    """Choose ports that are free and whose companion ports are free too."""
    ports: list[int] = []
    with contextlib.ExitStack() as held:
        while len(ports) < count:
            port = random.randrange(12_000, 32_000)
            try:
                for each in (port, port + _GRPC):
                    bound = held.enter_context(socket.socket())
                    bound.bind(("127.0.0.1", each))
            except OSError:
                continue
            ports.append(port)
    return ports
