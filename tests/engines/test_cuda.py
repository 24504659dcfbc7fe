"""The fork server looks for CUDA devices without initialising CUDA."""

import subprocess
from pathlib import Path

import pytest

from polyrhythm.core.devices import CudaFound
from polyrhythm.engines.cuda import use_device, why_missing
from polyrhythm.errors import PolyrhythmError
from tests.commands.start import start_script

LOOK = """
import torch
from polyrhythm.engines import cuda

{setting}
found = cuda.look_for_cuda_in_child()
assert not torch.cuda.is_initialized()
print(found.count, found.forked, found.missing)
"""
COUNTING_INITIALISES = """
def count():
    torch.cuda._initialized = True
    return 3

torch.backends.cuda.is_built = lambda: True
torch.cuda.device_count = count
"""
IN_BAD_FORK = "torch.cuda._is_in_bad_fork = lambda: True"
CRASHES = """
import os
torch.backends.cuda.is_built = lambda: True
torch.cuda.device_count = lambda: os.abort()
"""


def look(setting: str, folder: Path) -> str:
    """Look for devices in a process of its own, with this setting, and return what was found. The
    process is forked from the warm server, which has imported torch and uses no device."""
    path, pipe = folder / "look.py", subprocess.PIPE
    path.write_text(LOOK.format(setting=setting))
    process = start_script(path, cwd=folder, stdout=pipe, stderr=pipe)
    out, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    return str(out).strip()


def test_a_count_that_initialises_cuda_does_not_do_so_in_the_process_that_asks(
    tmp_path: Path,
) -> None:
    assert look(COUNTING_INITIALISES, tmp_path) == "3 True"


def test_a_process_that_was_forked_too_late_is_noticed(tmp_path: Path) -> None:
    assert look(COUNTING_INITIALISES + IN_BAD_FORK, tmp_path) == "3 False"


def test_a_crash_of_the_driver_is_no_crash_of_the_fork_server(tmp_path: Path) -> None:
    assert look(CRASHES, tmp_path) == "0 True torch failed when it looked for CUDA devices"


@pytest.mark.parametrize(
    ("built", "environ", "words"),
    [
        (False, {}, "torch 9.9 is built without it; install a torch with CUDA"),
        (True, {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES is '', so torch 9.9"),
        (True, {}, "check the driver with nvidia-smi"),
    ],
)
def test_the_reason_why_there_is_no_device_says_what_helps(
    built: bool, environ: dict[str, str], words: str
) -> None:
    assert words in why_missing("9.9", built=built, environ=environ)


def test_a_device_that_cannot_be_used_is_reported_in_one_line() -> None:
    use_device("cpu")
    with pytest.raises(PolyrhythmError, match=r"cuda:77 cannot be used: [^\n]+$"):
        use_device("cuda:77")


def test_found_devices_are_usable_unless_said_otherwise() -> None:
    assert CudaFound(1).forked and CudaFound().count == 0
