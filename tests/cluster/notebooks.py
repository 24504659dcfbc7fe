"""Jupyter with kernels that the warm server forks."""

import importlib.util
import json
import os
import sys
from pathlib import Path

from tests.cluster import forked_kernel
from tests.commands.start import warm_server


def jupyter_environment(folder: Path) -> dict[str, str]:
    """The environment of a program that runs notebooks. Its files are in this folder."""
    warm_server()  # from now on the environment has the address of the warm server
    launcher = importlib.util.find_spec("ipykernel_launcher")
    assert launcher is not None and launcher.origin is not None
    kernel = folder / "kernels" / "python3"
    kernel.mkdir(parents=True)
    program = [sys.executable, forked_kernel.__file__]
    argv = [*program, launcher.origin, "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "Python", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(spec))
    places = ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_PATH")
    return {**os.environ, **{name: str(folder) for name in places}}
