"""Run the containers of a manifest as local processes: each has the command, the environment, the files
and the working folder that the launcher would give to it. All of them have one host: the names of
services stand for it, and paths of volumes are folders of the test. The processes are forked
(`tests/commands/start.py`), so they lack OMP_NUM_THREADS, which torch reads when it is loaded."""

import os
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType

from tests.commands.start import Process, read_when_loaded, start

_THREADS = "OMP_NUM_THREADS"


class Containers:
    def __init__(self, folder: Path, replaced: Mapping[str, str]) -> None:
        """`replaced`: texts of commands and what stands for them here: names of services, paths of
        volumes, ports."""
        self._folder = folder
        self._replaced = replaced
        self.running: list[Process] = []

    def start(self, command: Iterable[str], env: Mapping[str, str], cwd: Path) -> Process:
        """Start a container. Its output goes to a file of its number."""
        words = [self.here(word) for word in command]
        assert Path(words[0]).name == "polyrhythm"
        cwd.mkdir(exist_ok=True)
        image = {"PATH": os.environ["PATH"], **read_when_loaded(os.environ)}
        given = {name: value for name, value in env.items() if name != _THREADS}
        log = self.log(len(self.running))
        with log.open("w") as output:
            process = start(
                *words[1:],
                cwd=cwd,
                env={**image, "HOME": str(self._folder), **given},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.running.append(process)
        return process

    def here(self, text: str) -> str:
        for name, value in self._replaced.items():
            text = text.replace(name, value)
        return text

    def log(self, number: int) -> Path:
        return self._folder / f"container-{number}.log"

    def logs(self) -> str:
        texts = (self.log(number).read_text() for number in range(len(self.running)))
        return "\n".join(f"-- {number}\n{text}" for number, text in enumerate(texts))

    def __enter__(self) -> "Containers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None
    ) -> None:
        for process in self.running:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # the container has ended by itself
            process.wait(10)
