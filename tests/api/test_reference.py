"""The reference (docs/reference) is made from docstrings: every public name has one, its examples
work, and it has a place on a page.

The examples of a page continue each other. They run in three places: examples of a worker inside a
small job, those of `serve` and `connect` with one served job, and all others in this process. In
examples `pr.train` runs its job in this process too.
"""

import doctest
import functools
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import polyrhythm as pr
from polyrhythm import errors
from polyrhythm.learn.attached import AttachedOptimizer
from polyrhythm.learn.worker import Worker

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "reference"
MODULES = ("cluster", "data", "decomposition", "linear_model", "mixture", "pointwise")
NOT_FOR_USERS = {"check_open", "close_logs", "finish", "inside"}
"""Members that other parts of the package use, and whose docstrings say that users do not."""
_PLACE = re.compile(r"^\.\. auto\w+:: ([\w.]+)((?:\n   :.*)*)", re.MULTILINE)
_MEMBERS = re.compile(r":members: (.+)")


def public_names() -> Iterator[tuple[str, Any]]:
    """Every public function and class, by its name."""
    for name in pr.__all__:
        if name not in ("errors", "__version__"):
            yield f"polyrhythm.{name}", getattr(pr, name)
    for name in MODULES:
        module = import_module(f"polyrhythm.{name}")
        for each in module.__all__:
            yield f"polyrhythm.{name}.{each}", getattr(module, each)


def members(owner: type) -> dict[str, Any]:
    """The public methods and properties that this class and its own base classes define."""
    found: dict[str, Any] = {}
    for each in reversed(owner.__mro__):
        if each.__module__.startswith("polyrhythm"):
            found |= {
                name: member
                for name, member in vars(each).items()
                if not name.startswith("_") and (callable(member) or isinstance(member, property))
            }
    return {name: member for name, member in found.items() if name not in NOT_FOR_USERS}


PUBLIC = dict(public_names())
ERRORS = {
    name: each
    for name, each in vars(errors).items()
    if isinstance(each, type) and each.__module__ == errors.__name__
}
CLASSES = {name: each for name, each in PUBLIC.items() if isinstance(each, type)}
WITH_EXAMPLES = dict(PUBLIC)
"""All that has an example: public names, and the methods and properties of the classes that a job
gives to its user."""
INHERITED = list(vars(Worker).values())
"""Methods of `Worker`, which `ConnectedWorker` only wraps."""
for class_name, class_ in CLASSES.items():
    if class_.__module__.startswith(("polyrhythm.api", "polyrhythm.engines", "polyrhythm.learn.w")):
        defined = {
            name: each
            for name, each in members(class_).items()
            if name in vars(class_) and getattr(each, "__wrapped__", None) not in INHERITED
        }
        WITH_EXAMPLES |= {f"{class_name}.{name}": each for name, each in defined.items()}
WITH_EXAMPLES |= {
    f"polyrhythm.AttachedOptimizer.{name}": getattr(AttachedOptimizer, name)
    for name in ("step", "zero_grad", "load_state_dict")
}
"""The other methods of an attached optimizer are those of torch."""


def doc_of(target: Any) -> str:
    """The docstring of a name itself, and not of what it inherits from."""
    return inspect.cleandoc(getattr(target, "__doc__", None) or "")


@pytest.mark.parametrize("name", sorted(WITH_EXAMPLES))
def test_every_public_name_has_a_docstring_with_an_example(name: str) -> None:
    text = doc_of(WITH_EXAMPLES[name])
    assert text.partition("\n")[0], f"{name} has no docstring"
    assert "Example:\n    >>> " in text, f"{name} has no example"


@pytest.mark.parametrize("name", sorted(CLASSES.keys() - {"polyrhythm.AttachedOptimizer"}))
def test_every_method_of_a_public_class_has_a_docstring(name: str) -> None:
    assert not [each for each, member in members(CLASSES[name]).items() if not doc_of(member)]


def test_every_error_has_a_docstring() -> None:
    assert len(ERRORS) > 10
    assert not [name for name, each in ERRORS.items() if not doc_of(each)]


# -- places ----------------------------------------------------------------------------------------


def places() -> set[str]:
    """The names that the pages show."""
    found: set[str] = set()
    for page in PAGES.glob("*.md"):
        for name, options in _PLACE.findall(page.read_text()):
            listed = [each for line in _MEMBERS.findall(options) for each in line.split(",")]
            found |= {name, *(f"{name}.{each.strip()}" for each in listed)}
    return found


def test_every_public_name_has_a_place_in_the_reference() -> None:
    shown = places()
    wanted = set(WITH_EXAMPLES) | {f"polyrhythm.errors.{name}" for name in ERRORS}
    assert wanted - shown == set()


def test_the_reference_shows_no_name_that_does_not_exist() -> None:
    known = {"polyrhythm.errors": errors} | PUBLIC
    known |= {f"polyrhythm.errors.{name}": each for name, each in ERRORS.items()}
    for name in places() - known.keys():
        owner, _, member = name.rpartition(".")
        assert owner in known, name
        written = inspect.getsource(known[owner])
        assert hasattr(known[owner], member) or re.search(rf"\b{member}: ", written), name


# -- examples --------------------------------------------------------------------------------------

UNATTACHED = {"Worker", "Worker.attach", "Worker.device"}
KINDS = {"AttachedOptimizer.load_state_dict": "local"}
SERVED = ("Service", "ConnectedWorker", "serve", "connect")


def short(name: str) -> str:
    return re.sub(r"^polyrhythm\.", "", name)


def of(name: str, *owners: str) -> bool:
    return short(name).partition(".")[0] in owners


def run_example(target: Any, name: str, known: dict[str, Any]) -> None:
    """Run the example in the docstring of a name, and compare what it prints."""
    example = doctest.DocTestParser().get_doctest(doc_of(target), known, name, None, None)
    assert example.examples, f"{name} has no example"
    said: list[str] = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    runner = doctest.DocTestRunner(optionflags=flags)
    runner.run(example, out=said.append, clear_globs=False)
    assert runner.failures == 0, "".join(said)
    known |= example.globs


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the examples know, in an empty folder beside which the scenarios lie."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    monkeypatch.setattr("polyrhythm.learn.worker.obtain", lambda *given: tmp_path)
    inputs = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    known = {name: _quietly(getattr(pr, name)) for name in ("serve", "connect", "simulate")}
    known["train"] = functools.partial(pr.train, engine="inline", quiet=True)
    rest = {name: getattr(pr, name) for name in pr.__all__ if name not in known}
    return {
        "pr": SimpleNamespace(**known, **rest),
        "torch": torch,
        "np": np,
        "inputs": inputs,
        "targets": inputs.sum(1, keepdim=True),
        "loss_of": torch.nn.functional.mse_loss,
    }


def _quietly(function: Callable[..., Any]) -> Callable[..., Any]:
    return functools.partial(function, quiet=True)


def in_job(known: dict[str, Any], inside: Callable[[Worker], None], **options: Any) -> pr.Result:
    return pr.train(inside, workers=1, servers=1, rounds=16, engine="inline", quiet=True, **options)


@pytest.mark.parametrize(
    "name", [name for name in WITH_EXAMPLES if of(name, "Worker", "AttachedOptimizer")]
)
def test_an_example_of_a_worker_works_in_a_job(name: str, known: dict[str, Any]) -> None:
    brief = short(name)

    def main(worker: Worker) -> None:
        model = torch.nn.Linear(8, 1)
        known.update(worker=worker, model=model)
        if brief not in UNATTACHED:
            plain = torch.optim.SGD(model.parameters(), lr=0.1)
            known["optimizer"] = worker.attach(model, plain)
        run_example(WITH_EXAMPLES[name], name, known)
        if "optimizer" not in known:
            plain = torch.optim.SGD(model.parameters(), lr=0.1)
            known["optimizer"] = worker.attach(model, plain)
        while not worker.stopped:
            known["loss_of"](known["model"](known["inputs"]), known["targets"]).backward()
            known["optimizer"].step(points=256)

    if brief == "Worker":
        run_example(WITH_EXAMPLES[name], name, known)
    else:
        in_job(known, main, kind=KINDS.get(brief, "gradient"), on_error="end")


def test_the_examples_of_results_work(known: dict[str, Any]) -> None:
    def main(worker: Worker) -> None:
        model = torch.nn.Linear(8, 1)
        optimizer = worker.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for x, y in worker.batches((known["inputs"], known["targets"]), batch_size=32):
            loss = known["loss_of"](model(x), y)
            loss.backward()
            optimizer.step(objective=loss)
        worker.report(accuracy=0.5)

    known.update(main=main, model=torch.nn.Linear(8, 1))
    for name, target in WITH_EXAMPLES.items():
        if of(name, "Result"):
            run_example(target, name, known)
    run_example(pr.runs, "runs", known)


@pytest.mark.cluster
def test_the_examples_of_a_served_job_work(known: dict[str, Any]) -> None:
    """The example of `connect` trains the model of the first job, and so ends it. `Service.stop`
    stops the second one."""
    jobs = ["serve", *(short(name) for name in WITH_EXAMPLES if of(name, *SERVED[:2])), "connect"]
    jobs.remove("Service.stop")
    for names in (list(dict.fromkeys(jobs)), ["serve", "Service.stop"]):
        try:
            for name in names:
                run_example(WITH_EXAMPLES[f"polyrhythm.{name}"], name, known)
        finally:
            known.pop("job").stop(now=True)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in WITH_EXAMPLES
        if not of(name, "Worker", "AttachedOptimizer", "Result", "runs", *SERVED)
    ],
)
def test_an_example_works(name: str, known: dict[str, Any]) -> None:
    run_example(WITH_EXAMPLES[name], name, known)


def test_the_example_of_errors_works(known: dict[str, Any]) -> None:
    module: ModuleType = errors
    run_example(module, "errors", known)


# -- the site --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_site_can_be_made_without_a_warning(tmp_path: Path) -> None:
    """Links and anchors have targets, and every page is in the table of contents. The extra `docs`
    installs Sphinx; without it the test is skipped, because the site takes a processor 20 s."""
    pytest.importorskip("sphinx_external_toc")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "docs", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 'id="polyrhythm.Worker.evaluate"' in (tmp_path / "reference" / "worker.html").read_text()
