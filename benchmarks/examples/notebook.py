"""Runs a notebook that trains with `pr.train`, with options that replace those of the notebook.

    python -m benchmarks.examples.notebook examples/notebook.ipynb --set sync=asp --set seed=1

The options are inserted as variables after the cell with the tag `parameters`. The notebook runs in an
empty folder, by nbclient and ipykernel, as in Jupyter. The last line of output is JSON: the metrics of
the variable `result`, the number of training points, and `failed`, which is null.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

LIMIT_S = 300
_TELL = """
import json
print(json.dumps({"metrics": result.metrics, "points": result.history[-1]["points"],
                  "failed": result.failed}))
"""


def code_before_training(path: Path) -> str:
    """The code of the cells before the one that calls `pr.train`."""
    codes: list[str] = []
    for cell in json.loads(path.read_text())["cells"]:
        code = "".join(cell["source"])
        if cell["cell_type"] != "code":
            continue
        if "pr.train(" in code:
            return "\n\n".join(codes)
        codes.append(code)
    raise SystemExit(f"{path.name} has no cell that calls pr.train")


def run(path: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Run all cells. Returns the metrics and the number of points of the variable `result`."""
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(path, as_version=4)
    places = [
        number
        for number, cell in enumerate(book.cells)
        if "parameters" in cell.metadata.get("tags", ())
    ]
    if len(places) != 1:
        raise SystemExit(f"{path.name} needs one cell with the tag 'parameters'")
    given = "\n".join(f"{name} = {value!r}" for name, value in options.items())
    book.cells.insert(places[0] + 1, nbformat.v4.new_code_cell(given))
    book.cells.append(nbformat.v4.new_code_cell(_TELL))
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(book, timeout=LIMIT_S, resources=resources).execute()
    printed = "".join(
        output.text for output in book.cells[-1].outputs if output.get("name") == "stdout"
    )
    return dict(json.loads(printed))


def _option(text: str) -> tuple[str, str | int]:
    name, _, value = text.partition("=")
    return name, int(value) if value.isdecimal() else value


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--set", type=_option, action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    print(json.dumps(run(args.file, dict(args.set))))


if __name__ == "__main__":
    main()
