"""`polyrhythm.serve`: starts the lead and the servers of a job without any code. Its workers are
processes that the user starts, with `polyrhythm.connect` or `polyrhythm worker`."""

import contextlib
import inspect
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from polyrhythm.api.boundary import public
from polyrhythm.api.code import Code
from polyrhythm.api.options import check_options, options_of
from polyrhythm.api.secret import SECRET
from polyrhythm.api.training import train
from polyrhythm.engines.engine import Wanted
from polyrhythm.errors import PolyrhythmError, UsageError

if TYPE_CHECKING:
    from polyrhythm.api.result import Result

_LOOK_S = 0.1
_END_S = 30.0
"""How long this process waits, when it exits, for the end of a job that still runs."""
NAME = "serve"

Options = ParamSpec("Options")
Returned = TypeVar("Returned")
Main = TypeVar("Main")


def serves(
    function: Callable[Concatenate[Main, Options], Any],
) -> Callable[[Callable[..., Returned]], Callable[Options, Returned]]:
    """A decorator: the decorated function has those keywords of `function` that the list of options
    gives to `serve`: all but those that concern the workers which `function` starts."""

    def decorate(serving: Callable[..., Returned]) -> Callable[Options, Returned]:
        served = [name for name, each in options_of(function).items() if "serve" in each.commands]
        kept = [inspect.signature(function).parameters[name] for name in served]
        serving.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]
        return serving

    return decorate


class _Served:
    """A job that a thread of this process runs. The thread refers to this object instead of the
    user's `Service`. So Python can collect a `Service` that the user no longer refers to, and the
    job of this `Service` then ends."""

    def __init__(self) -> None:
        self.known = threading.Event()
        """Whether the job listens, or has ended."""
        self.ended = threading.Event()
        self.address = ""
        self.run_dir: Path | None = None
        self.result: Result | None = None
        self.error: BaseException | None = None
        self._wanted = Wanted.GO_ON

    def run(self, options: dict[str, Any]) -> None:
        code = Code(NAME, served=True, remote=self)
        try:
            self.result = train(code, **options)  # type: ignore[arg-type]
        except BaseException as error:  # `wait` raises the error again, in the thread that calls it
            self.error = error
            self.result = getattr(error, "result", None)
        finally:
            self.ended.set()
            self.known.set()

    # -- called by the thread that runs the job ------------------------------------------------

    def listening(self, address: str, run_dir: Path) -> None:
        self.address, self.run_dir = address, run_dir.resolve()
        self.known.set()

    def evaluated(self, metrics: Mapping[str, float]) -> None:
        pass

    def wanted(self) -> Wanted:
        return self._wanted

    # -- called by other threads ---------------------------------------------------------------

    def stop(self, *, now: bool = False) -> None:
        if now or self._wanted is Wanted.GO_ON:
            self._wanted = Wanted.STOP_NOW if now else Wanted.STOP

    def abandon(self) -> None:
        """End a job whose `Service` the user no longer refers to, or that still runs when this
        process exits."""
        self.stop(now=True)
        self.ended.wait(_END_S)


class Service:
    """A running job of `polyrhythm.serve`. As a context manager it stops the job at the end of
    the `with` block, if the job has not ended by itself. An exception in the block stops the job
    at once.

    A job that is not stopped in one of these ways ends when this process ends.

    Example:
        >>> job
        <Service at 127.0.0.1:...: the job runs>
    """

    def __init__(self, served: _Served) -> None:
        self._served = served
        self._finalizer = weakref.finalize(self, served.abandon)

    @property
    def address(self) -> str:
        """HOST:PORT of the job, for `polyrhythm.connect` and `polyrhythm worker --connect`.

        Example:
            >>> job.address
            '127.0.0.1:...'
        """
        return self._served.address

    @property
    def run(self) -> Path:
        """The folder of the run.

        Example:
            >>> job.run.is_dir()
            True
        """
        assert self._served.run_dir is not None
        return self._served.run_dir

    @property
    def secret_file(self) -> Path:
        """The file with the secret of the job. Workers on other hosts need a copy of it.

        Example:
            >>> job.secret_file.name
            'secret'
        """
        return self.run / SECRET

    @property
    def job_file(self) -> Path:
        """The file with the settings and the id of the job.

        Example:
            >>> job.job_file.name
            'job.json'
        """
        return self.run / "job.json"

    @property
    def result(self) -> "Result | None":
        """The result of the job; None while it runs.

        Example:
            >>> job.result is None
            True
        """
        return self._served.result if self._served.ended.is_set() else None

    def wait(self, timeout_s: float | None = None) -> "Result":
        """Wait until the job has ended, and return its result.

        Args:
            timeout_s: the longest time to wait, in seconds. None: no limit.

        Returns:
            The result, as `polyrhythm.train` returns it.

        Raises:
            TimeoutError: the job runs longer. It goes on.
            JobFailed: the job did not reach its goal, and was not stopped.

        Example:
            >>> try:
            ...     job.wait(timeout_s=0.1)
            ... except TimeoutError:
            ...     print("the job runs")
            the job runs
        """
        if not self._served.ended.wait(timeout_s):
            raise TimeoutError(f"the job at {self.address} runs longer than {timeout_s:g} s")
        if self._served.error is not None:
            raise self._served.error.with_traceback(None)
        assert self._served.result is not None
        return self._served.result

    def stop(self, *, now: bool = False) -> "Result":
        """Stop the job, wait for its end, and return its result.

        Workers first leave their training loops with the final parameters. Ctrl-C during this
        call stops the job at once.

        Args:
            now: do not wait for the workers.

        Returns:
            The result, with the trained model.

        Raises:
            JobFailed: the job had failed before it was stopped.

        Example:
            >>> result = job.stop()
            >>> result.stopped
            True
        """
        self._served.stop(now=now)
        try:
            return self.wait()
        except KeyboardInterrupt:
            self._served.abandon()
            raise

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self.stop()
            return
        # an error while the job stops must not replace the error of the `with` block
        with contextlib.suppress(PolyrhythmError):
            self.stop(now=True)

    def __repr__(self) -> str:
        ended = "has ended" if self._served.ended.is_set() else "runs"
        return f"<Service at {self.address}: the job {ended}>"


@public
@serves(train)  # type: ignore[arg-type]
def serve(**options: Any) -> Service:
    """Start the lead and the servers of a job on this machine, and return while the job runs. Its
    workers are processes that others start.

    A worker is a program that calls `polyrhythm.connect`, or `polyrhythm worker`. Training begins
    when as many workers as `workers` says have joined, or after `start_timeout` with those that
    have. Workers may join and leave at any time; a job without workers waits for others. The job
    ends at its goal, or when it is stopped.

    Args:
        options: the options of `polyrhythm.train`, except those that concern the code of the job
            or workers that `train` starts.

    Returns:
        The running job. Use it as a context manager, or call its `stop` or `wait`.

    Raises:
        UsageError: an option is unknown or wrong.
        JobFailed: the job could not start.

    Example:
        >>> job = pr.serve(workers=1, servers=1, epochs=5)
        >>> job.result is None
        True
    """
    checked = defaults_of_serve() | options
    known = inspect.signature(serve).parameters
    unknown = [name for name in options if name not in known]
    for name in options_of(train).keys() & unknown:
        raise UsageError(
            f"serve has no option {name!r}: it concerns the code of the job, or workers that"
            " train starts"
        )
    check_options(serve, checked, unknown)
    served = _Served()
    service = Service(served)
    thread = threading.Thread(target=served.run, args=(options,), name="serve", daemon=True)
    with _interrupts_held_back() as interrupted:
        thread.start()
        while not served.known.wait(_LOOK_S) and not interrupted():
            pass
    if interrupted():
        served.abandon()
        raise KeyboardInterrupt
    if served.error is not None:
        raise served.error
    return service


def defaults_of_serve() -> dict[str, Any]:
    parameters = inspect.signature(serve).parameters.values()
    return {each.name: each.default for each in parameters}


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[Callable[[], bool]]:
    """While the processes of a job start, note Ctrl-C instead of raising KeyboardInterrupt. The
    returned function says whether Ctrl-C came. An exception could arrive before any object refers
    to the job, and then nothing would stop the job. Python handles signals in its main thread
    only."""
    came: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()
    if not main or handler is not signal.default_int_handler:
        # Ctrl-C does not raise an exception here: this is not the main thread, or the program
        # handles the signal itself.
        yield lambda: False
        return
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGINT, handler)
