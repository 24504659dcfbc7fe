"""Runs one worker in this process, without an engine, for a job on this or another host."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import torch

from polyrhythm.core.devices import AUTO, device_of_process, local_number
from polyrhythm.core.sync.migration import sharing_fault
from polyrhythm.core.sync.registry import traits_of
from polyrhythm.engines.accepted_code import accepted_code
from polyrhythm.engines.cores import share_of_cores
from polyrhythm.engines.cuda import look_for_cuda
from polyrhythm.engines.titles import set_title
from polyrhythm.engines.work import presence, settle_in, train
from polyrhythm.errors import CodeMissing, JobFailed, LeadLost
from polyrhythm.io.codefile import digest_of
from polyrhythm.io.local import host_identity
from polyrhythm.learn.load import JOBS, check_job, load_main
from polyrhythm.observe.reasons import in_words
from polyrhythm.observe.watch import report_in_words
from polyrhythm.runtime.net.dial import DialerFromOutside
from polyrhythm.runtime.options import NodeOptions
from polyrhythm.runtime.worker.node import WorkerNode
from polyrhythm.wire.messages import Address, JobSpec
from polyrhythm.wire.messages.reasons import DONE, TOLD_TO_LEAVE
from polyrhythm.wire.proof import Secret


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
    command: 0, or 128 plus the number of the signal that asked the worker to leave.

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
            with code_from(spec, file, accept=accept_code) as code:
                train(load_main(code), node, spec, staging)
    except LeadLost as error:
        raise LeadLost(f"{name} ends: {error}") from None
    except JobFailed as error:
        say(f"left: the job has ended: {error}")
        return 0
    left = "the job has ended" if node.loop.stopped else in_words(DONE)
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
