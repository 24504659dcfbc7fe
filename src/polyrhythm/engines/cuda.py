"""Looks for CUDA devices without initialising CUDA in this process.

*A process that is forked after CUDA was initialised cannot use CUDA. With some drivers, even a
query of the number of devices initialises CUDA. So the fork server looks for devices in a separate
process.*
"""

import os
from collections.abc import Mapping

import msgspec
import torch

from polyrhythm.core.devices import CudaFound
from polyrhythm.errors import PolyrhythmError

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def look_for_cuda() -> CudaFound:
    """The CUDA devices of this host. This call may initialise CUDA in this process."""
    if not _is_built():
        return _nothing_found()
    count = torch.cuda.device_count()
    if not count:
        return _nothing_found()
    # torch has no public function that says whether CUDA was initialised before a fork
    in_bad_fork = getattr(torch.cuda, "_is_in_bad_fork", lambda: False)
    return CudaFound(count, forked=not in_bad_fork())


def look_for_cuda_in_child() -> CudaFound:
    """The CUDA devices of this host. A forked process looks for them, so this process does not
    initialise CUDA. Call this while the process has one thread."""
    if not _is_built():
        return _nothing_found()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, msgspec.json.encode(look_for_cuda()))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    if not answer:
        return CudaFound(missing="torch failed when it looked for CUDA devices")
    found = msgspec.json.decode(answer, type=CudaFound)
    initialised: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return msgspec.structs.replace(found, forked=found.forked and not initialised)


def _is_built() -> bool:
    """Whether torch is built with CUDA, or with ROCm under the same name."""
    return bool(torch.backends.cuda.is_built())  # type: ignore[no-untyped-call]


def _nothing_found() -> CudaFound:
    why = why_missing(torch.__version__, built=_is_built(), environ=os.environ)
    return CudaFound(missing=why)


def why_missing(version: str, *, built: bool, environ: Mapping[str, str]) -> str:
    """Why torch finds no CUDA device, and what the user can do."""
    if not built:
        return (
            f"torch {version} is built without it; install a torch with CUDA, or use --devices cpu"
        )
    if _VISIBLE in environ:
        return f"{_VISIBLE} is {environ[_VISIBLE]!r}, so torch {version} finds no device"
    return (
        f"torch {version} finds no device; check the driver with nvidia-smi, or use --devices cpu"
    )


def use_device(name: str) -> None:
    """Make a CUDA device the current one of this thread, so that code which does not name a device
    uses it too."""
    if not name.startswith("cuda"):
        return
    try:
        torch.cuda.set_device(name)
    except (RuntimeError, AssertionError, AttributeError) as error:
        detail = str(error).partition("\n")[0]
        raise PolyrhythmError(f"{name} cannot be used: {detail}") from None
