"""Joins a Ray cluster, and looks at its nodes and at its control service (GCS)."""

import atexit
import contextlib
import math
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray

from polyrhythm.core.cluster import AUTO, CLIENT, HERE, ClusterNode, check_ray, choose_address
from polyrhythm.engines.output import flush
from polyrhythm.errors import PolyrhythmError

_DIAL_S = 5.0
_GREETING_S = 15.0
"""How long the control service of a busy machine may need for its first bytes."""
_LOOK_S = 1.0
"""How often the nodes of the cluster are looked at."""
_SILENT_S = 10.0
"""How long a query of the cluster may take."""
CLOSE_S = 10.0
"""How long the last calls to the cluster may take."""
_DEBUGGER = "PYTHONBREAKPOINT"
_TLS = "RAY_USE_TLS"
_FRAME_NBYTES, _FRAME_TYPE, _SETTINGS = 9, 3, 4
"""A server of gRPC begins every connection with a frame of HTTP/2 that has the type SETTINGS: the length
of a frame's header, and the index and the value of its type."""

# -- joining a cluster ---------------------------------------------------------------------------


@contextlib.contextmanager
def joined(given: str | None, cpus: float) -> Iterator[None]:
    """This process has joined a cluster within this context. `given`: the option --address. `cpus`: how
    many CPUs a cluster must have that is started for this job."""
    check_ray(ray.__version__)
    before = _address_of_session()
    address = choose_address(given, os.environ.get("RAY_ADDRESS"), before)
    if before is not None:
        yield
        return
    with _messages_of_ray_kept_away():
        try:
            with _settings_of_process_kept():
                _join(address, cpus, "" if given not in (None, AUTO) else " (RAY_ADDRESS)")
            yield
        finally:
            if not within(CLOSE_S, ray.shutdown):
                # otherwise the exit of this process would wait again
                atexit.unregister(ray.shutdown)
                atexit.register(_exit_without_ray)


def _exit_without_ray() -> None:
    """End this process without Ray's own clean-up. The clean-up would crash: threads of Ray hang,
    because the cluster does not answer."""
    atexit.unregister(_exit_without_ray)
    atexit._run_exitfuncs()
    flush()
    os._exit(1)


def _address_of_session() -> str | None:
    """The address of the cluster that this process has joined already."""
    if ray.util.client.ray.is_connected():
        return CLIENT
    return ray.get_runtime_context().gcs_address if ray.is_initialized() else None


def _join(address: str | None, cpus: float, source: str) -> None:
    """`source`: where the address comes from, if it was not given as an option."""
    if address in (None, AUTO):
        running = _running_cluster()
        if running is None and address == AUTO:
            raise PolyrhythmError(
                "no Ray cluster runs on this machine: start one with 'ray start --head', or give"
                " --address HOST:PORT"
            )
        address = running or HERE
    elif address != HERE:
        assert address is not None
        _check_answers(address, source)
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": "critical"}
    if address == HERE:
        how["num_cpus"] = max(os.cpu_count() or 1, math.ceil(cpus))
        how["include_dashboard"] = False
    try:
        ray.init(address, **how)
    except Exception as error:  # Ray raises some without a class of their own
        what = "start a local Ray" if address == HERE else "join the Ray cluster"
        said = _first_line(error) or type(error).__name__
        raise PolyrhythmError(f"cannot {what}: {said}") from error


def _running_cluster() -> str | None:
    """The address of the cluster of this machine; None if none answers. Ray keeps the address of
    the newest cluster even after it was killed, and would wait for it for minutes."""
    try:
        found: str = ray._private.services.get_ray_address_from_environment(AUTO, None)
    except ConnectionError:
        return None
    return found if _control_fault(found, greets=True) is None else None


def _check_answers(address: str, source: str) -> None:
    """Raise an error if no Ray cluster answers at this address. Without this check Ray would wait
    for a minute, and then end this process."""
    if (fault := _control_fault(address, greets=True)) is not None:
        raise PolyrhythmError(
            f"no Ray cluster answers at {address}{source}: {fault}; give the address that 'ray start"
            " --head' has printed, such as --address 10.0.0.1:6379"
        )


def _control_fault(address: str, *, greets: bool = False) -> str | None:
    """Why the control service of the cluster cannot be reached; None if it can. `greets`: whether it
    must also send what every server of gRPC sends at once."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _DIAL_S) as connection:
            if not greets or os.environ.get(_TLS) == "1":  # with TLS the client speaks first
                return None
            connection.settimeout(_GREETING_S)
            greeting = connection.recv(_FRAME_NBYTES)  # it comes in one piece
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    known = len(greeting) == _FRAME_NBYTES and greeting[_FRAME_TYPE] == _SETTINGS
    return None if known else "something other than Ray listens there"


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


@contextlib.contextmanager
def _settings_of_process_kept() -> Iterator[None]:
    """`ray.init` sets a handler for SIGTERM, and lets `breakpoint()` open a debugger of Ray. Both would
    stay in this process after the job."""
    debugger = os.environ.get(_DEBUGGER)
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, handler)
        if debugger is None:
            os.environ.pop(_DEBUGGER, None)
        else:
            os.environ[_DEBUGGER] = debugger


@contextlib.contextmanager
def _messages_of_ray_kept_away() -> Iterator[None]:
    """Ray prints messages about dead actors and nodes on the stdout of the process that has called
    `ray.init`, even if its logs are not printed there. A command that prints one JSON object must print
    nothing else there, and reports such deaths itself. In a session that the user has begun, Ray prints
    as usual."""
    name = "print_to_stdstream"
    shown = getattr(ray._private.worker, name, None)
    if shown is not None:
        setattr(ray._private.worker, name, lambda *args, **keywords: None)
    try:
        yield
    finally:
        if shown is not None:
            setattr(ray._private.worker, name, shown)


def within(seconds: float, act: Callable[[], object]) -> bool:
    """Run a call on another thread, because it may wait for a cluster that is gone. Returns whether
    it ended in time. An error of Ray means that there is nothing left to do."""

    def run() -> None:
        with contextlib.suppress(Exception):
            act()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


# -- looking at the cluster ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Look:
    """The cluster at one moment."""

    fault: str | None = None
    """Why the control service could not be reached. If it could not, nothing else is known."""
    nodes: Sequence[ClusterNode] = ()
    free: Mapping[str, float] = field(default_factory=dict)
    draining: frozenset[str] = frozenset()
    """The ids of the nodes that will be taken away."""


class ClusterWatch:
    """Looks at the cluster on its own thread, because Ray's calls wait while the control service
    is away."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._looks: queue.SimpleQueue[Look] = queue.SimpleQueue()
        self._looked_s = time.monotonic()
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="cluster", daemon=True).start()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                fault = _control_fault(self._address)
                found = look() if fault is None else Look(fault)
            except Exception as error:
                found = Look(_first_line(error) or type(error).__name__)
            self._looks.put(found)
            self._ended.wait(_LOOK_S)

    def newest(self) -> Look | None:
        """The newest state of the cluster since the last call; None if there is none. A control
        service that hangs accepts a connection but does not answer."""
        found = None
        with contextlib.suppress(queue.Empty):
            while True:
                found = self._looks.get_nowait()
                self._looked_s = time.monotonic()
        if found is None and time.monotonic() > self._looked_s + _SILENT_S:
            return Look("it hangs")
        return found

    def end(self) -> None:
        self._ended.set()


def look() -> Look:
    nodes = [
        ClusterNode(
            each["NodeID"],
            each["NodeManagerAddress"],
            each["Alive"],
            each.get("Resources") or {},
            each.get("Labels") or {},
            each.get("DeathReasonMessage") or "",
        )
        for each in ray.nodes()
    ]
    return Look(None, nodes, ray.available_resources(), draining_nodes())


def draining_nodes() -> frozenset[str]:
    """The ids of the nodes that the cluster will take away, for example because of a spot warning. Ray
    has no public function for this; Ray Train polls the same one."""
    state = getattr(ray._private.state, "state", None)
    get = getattr(state, "get_draining_nodes", None)
    return frozenset() if get is None else frozenset(get())
