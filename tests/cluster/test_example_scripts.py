"""Each script of `examples/` trains once, under one policy."""

from pathlib import Path

from tests.cluster.processes import Command

EXAMPLES = Path(__file__).parents[2] / "examples"


def train(name: str, sync: str, folder: Path) -> tuple[dict[str, float], int]:
    """Run a script. Returns the last measures that a worker reported, and the number of points."""
    flags = ["--workers", 2, "--servers", 1, "--sync", sync]
    with Command(EXAMPLES / name, *flags, cwd=folder) as command:
        assert command.wait(120) == 0, command.stderr()
        points = sum(line["points"] for line in command.journal("rounds"))
        return command.journal("reported")[-1]["metrics"], points


def test_a_loader_with_processes(tmp_path: Path) -> None:
    measures, points = train("loader.py", "ssp:4", tmp_path)
    assert measures["accuracy"] > 0.85
    assert points == 4 * 1_600


def test_a_cnn_with_batch_norm(tmp_path: Path) -> None:
    measures, points = train("batchnorm_cnn.py", "bsp", tmp_path)
    assert measures["accuracy"] > 0.9
    assert points == 4 * 960


def test_a_table_from_pandas(tmp_path: Path) -> None:
    measures, points = train("tabular.py", "bsp", tmp_path)
    assert measures["explained"] > 0.8
    assert points == 10 * 1_600
