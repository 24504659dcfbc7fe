"""The code that the workers of a job run: a file, a built-in job, or a function of this process."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from polyrhythm.engines.engine import Wanted
from polyrhythm.engines.functions import name_of, pack_main
from polyrhythm.engines.requests import PackedMain
from polyrhythm.errors import UsageError
from polyrhythm.io.codefile import digest_of
from polyrhythm.learn.load import HIDDEN, JOBS, check_job, defaults_of


class Remote(Protocol):
    """Watches the job for another thread of this process, or for a trial of Ray Tune, and may stop
    it."""

    def listening(self, address: str, run_dir: Path) -> None:
        """Called when the lead listens, with its address and with the folder of the run."""

    def evaluated(self, metrics: Mapping[str, float]) -> None:
        """Called after each evaluation, with the last value of every metric and the progress of the
        job."""

    def wanted(self) -> Wanted:
        """Returns whether to stop the job."""


@dataclass(frozen=True, slots=True)
class Code:
    name: str
    """The name of the job: a file, a built-in job, or `FILE:FUNCTION`."""
    path: str = ""
    """The absolute path of the file; empty if there is none."""
    digest: str = ""
    """The digest of the file."""
    defaults: dict[str, Any] = field(default_factory=dict)
    """The DEFAULTS of the job's module."""
    main: PackedMain | None = None
    """The function that workers run, if the code of the job is a function instead of a file."""
    served: bool = False
    """Whether the job has no code, because its workers are processes that users start
    (`polyrhythm.serve`)."""
    remote: Remote | None = None

    @property
    def stem(self) -> str:
        """The beginning of the run's name."""
        return Path(self.name.partition(":")[0] if self.main is not None else self.name).stem


def find_code(main: Callable[[Any], None] | str | Path | Code) -> Code:
    """The code of a job. Raises UsageError if the job cannot be run. A file is not run here."""
    if isinstance(main, Code):
        return main
    if isinstance(main, str | Path):
        return _find_by_name(str(main))
    if not callable(main):
        raise UsageError(
            f"main is {main!r}, which is not a job: give a function main(worker), a FILE.py or a"
            f" job's"
            " name"
        )
    _check_parameters(main)
    defaults = getattr(main, "__globals__", {}).get("DEFAULTS", {})
    if not isinstance(defaults, dict):
        raise UsageError('DEFAULTS must be a dict, for example DEFAULTS = {"epochs": 10}')
    return Code(f"{_origin(main)}:{name_of(main)}", defaults=defaults, main=pack_main(main))


def _check_parameters(main: Callable[[Any], None]) -> None:
    try:
        inspect.signature(main).bind(None)
    except ValueError:
        # Python does not know the signatures of some functions that are written in C: do not check
        # these
        return
    except TypeError as error:
        raise UsageError(
            f"{name_of(main)} cannot be called with one argument ({error}): give a function"
            " main(worker), because every worker calls it with its Worker"
        ) from None


def _find_by_name(job: str) -> Code:
    check_job(job)
    if job in HIDDEN:
        raise UsageError(f"{job!r} is not a job to train: see 'polyrhythm bench exchange --help'")
    path = "" if job in JOBS else str(Path(job).resolve())
    digest = digest_of(Path(path).read_bytes()) if path else ""
    return Code(job, path, digest, defaults_of(job))


def _origin(main: Callable[[Any], None]) -> str:
    """The origin of a function: the name of its file, or `python` if it is from a notebook or a
    prompt."""
    code = getattr(main, "__code__", None)
    file = Path("" if code is None else code.co_filename)
    return file.stem if file.suffix == ".py" and file.is_file() else "python"
