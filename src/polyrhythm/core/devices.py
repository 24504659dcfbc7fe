"""Which device each worker of a host computes on (`--devices`).

*Worker number N of a host asks for item N of the list. After its last item, the list begins again.
`cuda:1` and `cpu` name a device. `cuda` asks for any CUDA device, and `auto` for a CUDA device if
there is one. Workers with `cuda` or `auto` get the CUDA devices in turn.* A worker that is started
again keeps its device.
"""

import re
from collections.abc import Mapping, Sequence

import msgspec

from polyrhythm.core.machine import Reason
from polyrhythm.errors import UsageError

AUTO, CPU, CUDA = "auto", "cpu", "cuda"
_NUMBERED = re.compile(r"cuda:(?P<number>0|[1-9]\d{0,3})", re.ASCII)
_FORMS = "give auto, cpu, cuda, or a list such as cuda:0,cuda:1 or cuda:0,cpu,cpu"


class CudaFound(msgspec.Struct, frozen=True):
    """The CUDA devices that torch can use on this host."""

    count: int = 0
    missing: str = ""
    """Why torch can use no CUDA device; empty if it can use one."""
    forked: bool = True
    """Whether forked processes can use CUDA. They cannot if CUDA was initialised before the fork."""


class Assignment(msgspec.Struct, frozen=True):
    """The device of each worker, and a hint for the user."""

    devices: tuple[str, ...]
    notes: tuple[Reason, ...] = ()


def as_text(devices: object) -> str:
    """The text of `--devices`. Python code may also give a `torch.device` or a list; this function
    turns them into text."""
    return ",".join(map(str, devices)) if isinstance(devices, list | tuple) else str(devices)


def parse_devices(text: str) -> tuple[str, ...]:
    """The items of `--devices`. Raises UsageError if one of them is not understood."""
    items = tuple(item.strip() for item in text.split(","))
    for item in items:
        if item not in (AUTO, CPU, CUDA) and _NUMBERED.fullmatch(item) is None:
            which = f"--devices {text!r}" if len(items) == 1 else f"{item!r} in --devices {text!r}"
            raise UsageError(f"{which} is not understood: {_FORMS}")
    return items


def asked_by(items: Sequence[str], number: int) -> str:
    """The item of `--devices` that worker `number` of a host asks for."""
    return items[number % len(items)]


def may_use_cuda(asked: str) -> bool:
    """Whether a worker with the item `asked` may get a CUDA device."""
    return asked != CPU


def assign(asked: Sequence[str], found: CudaFound) -> Assignment:
    """Give every worker of a host a device. `asked`: the item of each worker. Raises UsageError if
    a worker asks for a device that it cannot have."""
    free = found.count if found.forked else 0
    devices: list[str] = []
    turns = 0
    for each in asked:
        if each == CPU or (each == AUTO and not free):
            devices.append(CPU)
            continue
        _check(each, found)
        if each in (AUTO, CUDA):
            devices.append(f"cuda:{turns % found.count}")
            turns += 1
        else:
            devices.append(each)
    notes = [] if free or AUTO not in asked or not found.count else [Reason("cuda-not-forked")]
    return Assignment(tuple(devices), (*notes, *_shared(devices)))


def _check(asked: str, found: CudaFound) -> None:
    if not found.count:
        raise UsageError(f"--devices {asked}: CUDA is not available: {found.missing}")
    match = _NUMBERED.fullmatch(asked)
    if match is not None and int(match["number"]) >= found.count:
        there = "only cuda:0" if found.count == 1 else f"cuda:0 to cuda:{found.count - 1}"
        raise UsageError(f"--devices {asked}: there is no such device; this machine has {there}")
    if not found.forked:
        raise UsageError(
            f"--devices {asked}: a module that this Python imports at its start has initialised CUDA,"
            " and processes that are forked afterwards cannot use it: let main(worker) import the"
            " module, or give --devices cpu"
        )


def _shared(devices: Sequence[str]) -> list[Reason]:
    """A message for the user about every CUDA device that several workers share."""
    notes = []
    for device in sorted(set(devices) - {CPU}, key=lambda each: (len(each), each)):
        users = [number for number, used in enumerate(devices) if used == device]
        if len(users) > 1:
            notes.append(Reason("device-shared", {"device": device, "workers": users}))
    return notes


_LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
"""The environment variables with which launchers (torchrun, Slurm, MPI) number the processes of a
host."""


def local_number(environ: Mapping[str, str]) -> int:
    """The number of this process among those that a launcher started on this host; 0 without a
    launcher."""
    for variable in _LOCAL_RANKS:
        text = environ.get(variable, "")
        if text.isascii() and text.isdigit() and len(text) < 10:
            return int(text)
    return 0


def device_of_process(text: str, found: CudaFound, number: int) -> str:
    """The device of a worker that runs without an engine, in process `number` of its host. `text`:
    its `--devices`."""
    items = parse_devices(text)
    return assign([asked_by(items, each) for each in range(number + 1)], found).devices[number]
