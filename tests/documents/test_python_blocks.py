"""Every block of Python in the documents runs.

A block is run in one of three ways:

- a block with `main(worker)` is the file of a job;
- a block that uses `worker` is put into `main(worker)`. Unless it attaches a model, a model is attached
  before it; unless it trains, a loop that trains follows it;
- any other block is a script.

Names that a block does not define are those of `names.py`. Jobs run inside the test's process, for a
few rounds. A comment such as `<!-- python: kind="local" -->` before a block gives further options of
the job.
"""

import os
import re
import shlex
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import polyrhythm as pr
from tests.commands.forked_python import command as forked_python
from tests.documents import names
from tools.newcomer import ROOT

_BLOCK = re.compile(
    r"^(?:<!-- python: (?P<options>.*?) -->\n+)?```py(?:thon)?\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("benchmarks/*/*.md")]
)
_START = "from tests.documents.names import *\n"
_ADDRESS = "127.0.0.1:7000"
_ATTACH = "optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))\n"
_TRAIN = """
for inputs, targets in worker.batches(data, batch_size=32):
    loss = loss_of(model(inputs), targets)
    loss.backward()
    optimizer.step(objective=loss)
"""


@dataclass(frozen=True)
class Block:
    where: str
    text: str
    options: dict[str, Any]

    @property
    def has_main(self) -> bool:
        return "def main(" in self.text and "pr.train(" not in self.text

    @property
    def uses_worker(self) -> bool:
        return "worker." in self.text and "def main(" not in self.text and "pr." not in self.text


def blocks() -> Iterator[Block]:
    for page in _PAGES:
        text = page.read_text()
        for match in _BLOCK.finditer(text):
            line = text.count("\n", 0, match.start("text")) + 1
            options = eval(f"dict({match['options'] or ''})")
            yield Block(f"{page.relative_to(ROOT)}:{line}", match["text"], options)


BLOCKS = list(blocks())


def of_kind(jobs: bool) -> Any:
    chosen = [block for block in BLOCKS if (block.has_main or block.uses_worker) is jobs]
    return pytest.mark.parametrize("block", chosen, ids=[block.where for block in chosen])


def test_every_block_of_python_is_found() -> None:
    """A fence that is written in another way would leave its block out."""
    found = sum(len(re.findall(r"^ *```py", page.read_text(), re.MULTILINE)) for page in _PAGES)
    assert found == len(BLOCKS) > 25


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with the files and modules that blocks read."""
    monkeypatch.chdir(tmp_path)
    files = {
        "runs/first/model.safetensors": names.model.state_dict(),
        "runs/mine/model.safetensors": nn.Linear(64, 10).state_dict(),
        "runs/mine/checkpoints/00000007/slices-0-5f2c9a41.safetensors": {
            "12.exp_avg": torch.ones(3)
        },
    }
    for name, tensors in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, path)
    torch.save(names.data, "points-of-this-host.pt")
    columns = {f"x{column}": names.X[:, column] for column in range(names.FEATURES)}
    table = pa.table(columns | {"label": names.labels.numpy()})
    pyarrow.parquet.write_table(table, "higgs.parquet")
    (tmp_path / "mine.py").write_text((ROOT / "examples" / "connect.py").read_text())
    log = types.SimpleNamespace(add_scalar=lambda *_: None, log=lambda *_, **__: None)
    monkeypatch.setenv("PATH", f"{_programs(tmp_path / 'bin')}:{os.environ['PATH']}")
    for module, name in (("torch.utils.tensorboard", "SummaryWriter"), ("wandb", "init")):
        stand_in = types.ModuleType(module)
        setattr(stand_in, name, lambda *_, **__: log)
        monkeypatch.setitem(sys.modules, module, stand_in)
    return tmp_path


def _programs(folder: Path) -> Path:
    """A folder with a `torchrun` that the warm server forks, as it forks the processes that this starts.
    Otherwise each of them would import torch."""
    folder.mkdir()
    forked = shlex.join(forked_python())
    torchrun = Path(sys.executable).with_name("torchrun")
    for name, words in (
        ("python", f'{forked} "$@"'),
        ("torchrun", f'{forked} {torchrun} "$1" "$2" --no-python {folder}/python "$3" "$4"'),
    ):
        (folder / name).write_text(f"#!/bin/sh\nexec {words}\n")
        (folder / name).chmod(0o700)
    return folder


@of_kind(jobs=True)
def test_a_block_of_a_job_runs(block: Block, folder: Path) -> None:
    text = block.text
    if block.uses_worker:
        before = "model = Classifier()\n"
        before += "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        before += "batches = iter(lambda: data, None)\n"
        if "attach(" not in text:
            before += _ATTACH
        after = "" if ".step(" in text else _TRAIN
        text = f"def main(worker):\n{indent(before + text + after, '    ')}"
    (folder / "job.py").write_text(_START + text)
    given = {"workers": 1, "servers": 1, "rounds": 4} | block.options
    result = pr.train("job.py", engine="inline", quiet=True, start_timeout=30, **given)
    assert result.status == "ended", result.failed
    assert result.summary["contributions"] > 0


@pytest.mark.cluster
@of_kind(jobs=False)
def test_a_script_runs(block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = pr.Service.wait

    def stop(job: pr.Service, *_: Any) -> Any:
        """No worker joins the job of a block that waits for its end."""
        monkeypatch.setattr(pr.Service, "wait", wait)
        return job.stop()

    monkeypatch.setattr(pr.Service, "wait", stop)
    (folder / "job.py").write_text(f"{_START}def main(worker):\n{indent(_ATTACH + _TRAIN, '    ')}")
    known: dict[str, Any] = {
        "__name__": "__main__",
        "logger": types.SimpleNamespace(log=lambda *_, **__: None),
    }
    text = block.text
    if "result.history" in text and "result =" not in text:
        known["result"] = pr.train("job.py", engine="inline", workers=1, epochs=2, quiet=True)
    if _ADDRESS in text or "pr.connect(" in text:
        with pr.serve(workers=1, **{"epochs": 2} | block.options, quiet=True) as job:
            monkeypatch.setattr(sys, "argv", ["mine.py", job.address])
            _run(text.replace(_ADDRESS, job.address), known)
    else:
        _run(text, known)


def _run(text: str, known: dict[str, Any]) -> None:
    exec(compile(_START + text, "block", "exec"), known)
