"""Run the containers of a manifest as local processes: each has the command, the environment, the files
and the working folder that the launcher would give to it. All of them have one host: the names of
services stand for it, and paths of volumes are folders of the test."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType

CLI = str(Path(sys.executable).with_name("polyrhythm"))


class Containers:
    def __init__(self, folder: Path, replaced: Mapping[str, str]) -> None:
        """`replaced`: texts of commands and what stands for them here: names of services, paths of
        volumes, ports."""
        self._folder = folder
        self._replaced = replaced
        self.running: list[subprocess.Popen[str]] = []

    def start(
        self, command: Iterable[str], env: Mapping[str, str], cwd: Path
    ) -> subprocess.Popen[str]:
        """Start a container. Its output goes to a file of its number."""
        words = [self.here(word) for word in command]
        assert Path(words[0]).name == "polyrhythm"
        cwd.mkdir(exist_ok=True)
        kept = {
            name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ
        }
        log = self.log(len(self.running))
        with log.open("w") as output:
            process = subprocess.Popen(
                [CLI, *words[1:]],
                cwd=cwd,
                env={**kept, "HOME": str(self._folder), **env},
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
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
