"""Runs one worker in this process, without an engine, for a job on this or another host.

*If the job has ended, and the user's code does not return to its training loop, the process ends
after a grace period, as the processes that an engine has started do. The code after the loop may go
on.*
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import torch

from polyrhythm.core.devices import AUTO, device_of_process, local_number
from polyrhythm.core.migration import sharing_fault
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.engines.accepted_code import accepted_code
from polyrhythm.engines.cores import share_of_cores
from polyrhythm.engines.cuda import look_for_cuda
from polyrhythm.engines.titles import set_title
from polyrhythm.engines.work import Presence, presence, settle_in, train
from polyrhythm.errors import CodeMissing, JobFailed, LeadLost
from polyrhythm.io.codefile import digest_of
from polyrhythm.io.local import host_identity
from polyrhythm.learn.load import JOBS, check_job, load_main
from polyrhythm.observe.reasons import in_words
from polyrhythm.observe.watch import report_in_words
from polyrhythm.runtime.net.dial import DialerFromOutside
from polyrhythm.runtime.operator import may_run
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.wire.messages import Address, JobSpec
from polyrhythm.wire.messages.reasons import TOLD_TO_LEAVE
from polyrhythm.wire.proof import Secret

_GRACE_S = 5.0
"""How long the user's code may go on after the lead has ended its link to this worker, before this
process asks whether the job still runs."""
_LOOK_EVERY_S = 1.0


class _JobWatch:
    """Ends this process some time after the end of the job. Use it as a context manager around the
    user's code."""

    def __init__(
        self,
        node: WorkerNode,
        present: Presence,
        may_run: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        """`may_run`: whether the job may still run."""
        self._node = node
        self._present = present
        self._may_run = may_run
        self._say = say
        self._over = threading.Event()

    def __enter__(self) -> None:
        threading.Thread(target=self._watch, name="job-watch", daemon=True).start()

    def __exit__(self, *error: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        name, since_s = self._node.name, time.monotonic()
        while not self._over.wait(_LOOK_EVERY_S):
            if not self._node.cut_off:
                since_s = time.monotonic()
            if time.monotonic() < since_s + _GRACE_S:
                continue
            if self._may_run():
                since_s = time.monotonic()  # the lead has evicted this worker, which may rejoin
            elif self._node.loop.stopped:
                self._say(
                    f"the job has ended, and the code of {name} after its training loop still runs:"
                    " this process ends with that code, or at once after two SIGTERM or Ctrl-C"
                )
                return
            elif not self._over.is_set():
                self._say(
                    f"left: the job has ended, and the code of {name} did not return to its training"
                    f" loop within {_GRACE_S:g} s, so this process ends"
                )
                sys.stderr.flush()
                os._exit(self._present.status or 1)


def run_remote(
    host: str,
    port: int,
    name: str,
    *,
    say: Callable[[str], None],
    secret: Secret,
    job: str = "",
    file: str = "",
    link: str = "auto",
    digest: str = "auto",
    threads: int | None = None,
    devices: str = AUTO,
    staging: Mapping[str, str] | None = None,
    trace_dir: Path | None = None,
    accept_code: bool = False,
    share_data: bool = False,
) -> int:
    """Join the job whose lead is at host:port, train, and leave. Returns the exit status of the
    command: 0, or 128 plus the number of the signal that asked the worker to leave. If the user's
    code hangs when the job has ended, the process ends with status 1.

    `job`: join only the job with this id. `file`: the file with the job's code on this host, if the
    user has given one. *A file that only the lead names is never run. Code that the lead sends is run
    only with `accept_code`, if it is the file with which the job began.* `devices`: the device of this
    worker (`core/devices.py`). `share_data`: its private points may be sent to other workers.
    """
    settle_in()
    options = NodeOptions(
        digest=digest,
        link=link,
        trace_dir=trace_dir,
        report=lambda note: say(report_in_words(note.what, (name,), note.fields)),
        secret=secret,
        device=device_of_process(devices, look_for_cuda(), local_number(os.environ)),
        share_data=share_data,
    )
    node = WorkerNode(name, job, DialerFromOutside(link, host), options)
    code_from = partial(_code_of, host=host, port=port, name=name, secret=secret, say=say)
    try:
        with presence(node, (signal.SIGTERM, signal.SIGINT), own_command=True) as present:
            spec = node.join(Address(host, port, "", ""))
            set_title(f"polyrhythm: {name} of {spec.name}", name)
            say(f"joined job {spec.name} at {host}:{port} as {name}")
            if share_data and (why := sharing_fault(spec, traits_of(spec.sync))) is not None:
                say(f"--share-data has no effect: {why}")
            here = node.servers[0].identity == host_identity()
            torch.set_num_threads(threads or _threads_for(spec, here))
            may_go_on = partial(may_run, host, port, name, spec.job, secret)
            with (
                _JobWatch(node, present, may_go_on, say),
                code_from(spec, file, accept=accept_code) as code,
            ):
                train(load_main(code), node, spec, staging)
    except LeadLost as error:
        raise LeadLost(f"{name} ends: {error}") from None
    except JobFailed as error:
        say(f"left: the job has ended: {error}")
        return 0
    left = "the job has ended" if node.loop.stopped else in_words(node.loop.done)
    say(f"left: {in_words(TOLD_TO_LEAVE) if node.loop.asked else left}")
    return present.status


def _threads_for(spec: JobSpec, here: bool) -> int:
    """The number of threads of this worker: all cores, or a share of them if workers and servers
    that `train` has started run on this host too."""
    return share_of_cores(spec.workers + 1, spec.servers) if here else share_of_cores(1, 0)


@contextlib.contextmanager
def _code_of(
    spec: JobSpec,
    file: str,
    *,
    accept: bool,
    host: str,
    port: int,
    name: str,
    secret: Secret,
    say: Callable[[str], None],
) -> Iterator[str]:
    """The code to run: the file that the user gave to this command, the file that the user gave to
    `train` on this host, a built-in job, or the file that the lead sends, if the user accepts
    it."""
    if spec.name in JOBS and not file:
        yield spec.name
        return
    if file:
        check_job(file)
        if spec.code_digest and digest_of(Path(file).read_bytes()) != spec.code_digest:
            say(f"{file} differs from the job's file: check that both files train the same model")
        yield file
        return
    if not accept or not spec.path:
        raise CodeMissing(_missing(spec, f"{host}:{port}"))
    with accepted_code(host, port, name, spec, secret) as (path, digest):
        check_job(str(path))
        say(f"runs {path.name}, which the lead has sent ({path.stat().st_size} bytes, {digest})")
        yield str(path)


def _missing(spec: JobSpec, address: str) -> str:
    if spec.served:
        return (
            "this job has no code of its own: name a file with main(worker), as in 'polyrhythm worker"
            f' FILE.py --connect {address}\', or call polyrhythm.connect("{address}") in a program'
        )
    if not spec.path:
        return (
            "the code of this job is a function of a Python program, which is never sent to another"
            f" process: put it into a file, as in 'polyrhythm worker FILE.py --connect {address}'"
        )
    file = Path(spec.name).name
    return (
        f"the code of job {spec.name} is not on this machine: name its copy here, as in 'polyrhythm"
        f" worker {file} --connect {address}', or give --accept-code to run the file that the lead"
        " sends"
    )
