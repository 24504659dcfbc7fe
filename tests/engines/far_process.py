"""The program of a process of `far_host.py`: `python far_process.py PORT NAME FOLDER`. It gets its
request over a connection to PORT. It must not open a file in FOLDER, which is on another machine."""

import os
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec

from polyrhythm.core.kinds import steps_on_workers
from polyrhythm.engines.process import SocketControl, run_process
from polyrhythm.engines.requests import ChildRequest
from polyrhythm.engines.server_process import serve
from polyrhythm.engines.worker_process import work
from polyrhythm.tensors.compiler import prepare_optimizers


def keep_out_of(folder: Path) -> None:
    """Raise PermissionError when this process opens a file in the folder, or lists or changes it."""
    within = str(folder)

    def check(event: str, args: tuple[Any, ...]) -> None:
        if event in {"open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove"}:
            path = args[0]
            if isinstance(path, str | bytes | Path) and os.fsdecode(path).startswith(within):
                raise PermissionError(f"{os.fsdecode(path)} is on another machine")

    sys.addaudithook(check)


def main(port: str, name: str, folder: str) -> None:
    engine = socket.create_connection(("127.0.0.1", int(port)))
    engine.sendall(f"{name}\n".encode())
    with engine.makefile("rb", buffering=0) as lines:
        request = msgspec.json.decode(lines.readline(), type=ChildRequest)
    keep_out_of(Path(folder))
    prepare_optimizers(steps=steps_on_workers(request.job.kind))
    control = SocketControl(engine, lambda: None)
    status = run_process(request, control, serve if request.role == "server" else work)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
