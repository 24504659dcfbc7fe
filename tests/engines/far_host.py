"""A host of processes as on other machines: no file is common to the engine and its processes. Each
process runs in a folder of its own and connects to the engine over TCP."""

import contextlib
import os
import selectors
import shutil
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from polyrhythm.engines.engine import EngineRun, EngineWatch
from polyrhythm.engines.exits import ending
from polyrhythm.engines.host import Exited, HostEvent, Printed, ProcessReported
from polyrhythm.engines.requests import ChildRequest, Told, pack_line
from polyrhythm.engines.supervisor import Supervisor
from tests.commands.start import Process, start_script

_PROGRAM = Path(__file__).with_name("far_process.py")
_END_S = 10.0


@dataclass(eq=False)
class FarProcess:
    name: str
    program: Process
    unsent: list[bytes]
    """The messages for a process that is not connected yet."""
    control: socket.socket | None = None
    unread: bytes = b""
    exited: bool = False


class FarHost:
    def __init__(self, folder: Path) -> None:
        """`folder`: the folders of the processes are made there."""
        self.processes: dict[str, FarProcess] = {}
        self._folder = folder
        self._selector = selectors.DefaultSelector()
        self._starts = 0

    def open(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._selector.register(self._listener, selectors.EVENT_READ)

    def prepare(self, name: str) -> None:
        pass

    def start(self, request: ChildRequest) -> None:
        self._starts += 1
        folder = self._folder / f"{request.name}-{self._starts}"
        folder.mkdir()
        file = folder / "job.py"
        shutil.copy(request.job.path, file)
        sent = msgspec.structs.replace(
            request, code=str(file), folder=str(folder), host="127.0.0.1"
        )
        port = self._listener.getsockname()[1]
        reading, writing = os.pipe()
        with open(writing, "wb") as output:
            program = start_script(
                _PROGRAM,
                *(str(port), request.name, request.run_dir),
                cwd=folder,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                stdout=output,
                stderr=output,
            )
        process = FarProcess(request.name, program, [msgspec.json.encode(sent) + b"\n"])
        self.processes[request.name] = process
        os.set_blocking(reading, False)
        self._selector.register(reading, selectors.EVENT_READ, process)

    def tell(self, name: str, told: Told) -> None:
        process = self.processes[name]
        if process.control is None:
            process.unsent.append(pack_line(told))
        else:
            with contextlib.suppress(OSError):
                process.control.sendall(pack_line(told))

    def signal(self, name: str, number: signal.Signals) -> None:
        self.processes[name].program.send_signal(number)

    def wait(self, timeout_s: float) -> Sequence[HostEvent]:
        events: list[HostEvent] = []
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj == self._listener:
                self._accept()
            else:
                events += self._read(key.fileobj, key.data)
        for process in self.processes.values():
            status = None if process.exited else process.program.poll()
            if status is not None:
                process.exited = True
                for key in list(self._selector.get_map().values()):
                    if key.data is process:
                        events += self._rest(key.fileobj, process)
                events.append(Exited(process.name, status, ending(status)))
        return events

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        with connection.makefile("rb", buffering=0) as lines:
            process = self.processes[lines.readline().decode().strip()]
        process.control = connection
        connection.sendall(b"".join(process.unsent))
        self._selector.register(connection, selectors.EVENT_READ, process)

    def _read(self, source: Any, process: FarProcess) -> Iterator[HostEvent]:
        try:
            data = os.read(source if isinstance(source, int) else source.fileno(), 65536)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self._selector.unregister(source)
            os.close(source) if isinstance(source, int) else source.close()
        elif isinstance(source, int):
            yield Printed(process.name, data)
        else:
            *lines, process.unread = (process.unread + data).split(b"\n")
            for line in lines:
                yield ProcessReported(process.name, msgspec.json.decode(line, type=Told))

    def _rest(self, source: Any, process: FarProcess) -> Iterator[HostEvent]:
        """What a process that has ended has sent or printed and is not read yet."""
        if not isinstance(source, int):
            source.settimeout(_END_S)
        else:
            os.set_blocking(source, True)
        while any(key.fileobj == source for key in self._selector.get_map().values()):
            yield from self._read(source, process)

    def close(self) -> None:
        for process in self.processes.values():
            process.program.kill()
            process.program.wait(_END_S)
        for key in list(self._selector.get_map().values()):
            self._selector.unregister(key.fileobj)
            os.close(key.fileobj) if isinstance(key.fileobj, int) else key.fileobj.close()
        self._selector.close()


@dataclass
class FarEngine:
    folder: Path
    hosts: list[FarHost] = field(default_factory=list)

    def run(self, requests: Sequence[ChildRequest], watch: EngineWatch) -> EngineRun:
        self.hosts.append(FarHost(self.folder))
        return Supervisor(requests, self.hosts[-1], watch).run()
