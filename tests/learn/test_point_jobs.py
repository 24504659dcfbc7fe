"""The built-in jobs that read a table of points: kmeans, fcm, gmm, nmf and lr."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.errors import DataError, UsageError
from polyrhythm.learn.pointwise.algorithm import Batch
from polyrhythm.learn.pointwise.kmeans import KMeansAlgorithm
from polyrhythm.learn.pointwise.local import fit_local
from polyrhythm.learn.pointwise.nearest import labels_of

pytest.importorskip("pyarrow")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, 600)
    x = rng.normal(size=(2, 3))[label] * 4 + rng.normal(size=(600, 3)) + 20.0
    rows = (f"{a:.4f},{b:.4f},{c:.4f},{y}" for (a, b, c), y in zip(x, label, strict=True))
    lines = ["a,b,c,label", *rows]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "t.csv"


def run(job: str, tmp_path: Path, **options: Any) -> pr.Result:
    given = {"workers": 2, "servers": 1, "engine": "inline", "quiet": True, "max_seconds": 100}
    return pr.train(job, runs_dir=str(tmp_path / "runs"), **{**given, **options})


@pytest.mark.parametrize("sync", ["bspb", "fsp"])
def test_kmeans_finds_the_clusters_of_a_file(table: Path, tmp_path: Path, sync: str) -> None:
    result = run("kmeans", tmp_path, sync=sync, set={"data": table, "k": 2, "label": "label"})
    x = np.loadtxt(table, delimiter=",", skiprows=1)[:, :3]
    centers = result.state_dict()["centers"].numpy()
    assert centers.shape == (2, 3)
    local = fit_local(KMeansAlgorithm(2), Batch(x), rng=np.random.default_rng(0), max_passes=50)
    assert labels_of(x, centers)[1].sum() == pytest.approx(local.objectives[-1], rel=0.01)


def test_a_job_says_if_fuzzy_c_means_has_found_no_clusters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "t.npy", np.random.default_rng(0).normal(size=(600, 12)))
    run("fcm", tmp_path, sync="bspb", set={"data": tmp_path / "t.npy", "k": 3})
    said = capsys.readouterr().err
    assert said.count("belong to each of the 3 clusters to a degree of about 1/3") == 1
    run("fcm", tmp_path, sync="bspb", set={"data": tmp_path / "t.npy", "k": 3, "m": 1.1})
    assert "to a degree of about" not in capsys.readouterr().err


@pytest.mark.parametrize("job", ["kmeans", "fcm"])
def test_clusters_far_from_the_origin_are_found(tmp_path: Path, job: str) -> None:
    """Map coordinates, whose last digits float32 does not have."""
    rng = np.random.default_rng(0)
    corner = np.array([4.5e6, 5.5e6])
    places = np.array([[0.0, 0.0], [40.0, 0.0], [0.0, 40.0], [40.0, 40.0]])
    x = corner + places[rng.integers(0, 4, 2_000)] + rng.normal(scale=0.1, size=(2_000, 2))
    np.savetxt(tmp_path / "t.csv", x, delimiter=",", fmt="%.4f", header="east,north", comments="")
    result = run(job, tmp_path, sync="bspb", set={"data": tmp_path / "t.csv", "k": 4})
    found = result.state_dict()["centers"].numpy()
    assert np.abs(found - corner - np.round(found - corner)).max() < 0.02
    assert sorted(np.round(found - corner).tolist()) == sorted(places.tolist())
    assert labels_of(x, found)[1].mean() == pytest.approx(2 * 0.1**2, rel=0.1)
    assert result.metrics["objective"] == pytest.approx(2 * 0.1**2, rel=0.1)


@pytest.mark.parametrize(
    ("job", "options", "names"),
    [
        ("fcm", {"k": 2, "label": 3, "m": 1.5}, {"centers": (2, 3)}),
        ("gmm", {"k": 2, "label": -1}, {"means": (2, 3), "covariances": (2, 3)}),
        ("gmm", {"k": 2, "covariance": "full"}, {"covariances": (2, 4, 4)}),
        ("nmf", {"k": 2, "form": "table"}, {"components": (2, 4)}),
    ],
)
def test_a_job_leaves_its_parameters(
    table: Path, tmp_path: Path, job: str, options: dict[str, Any], names: dict[str, Any]
) -> None:
    result = run(job, tmp_path, sync="bspb", epochs=5, set={"data": table, **options})
    found = result.state_dict()
    for name, shape in names.items():
        assert tuple(found[name].shape) == shape
    assert np.isfinite(result.metrics["objective"])


def test_nmf_reads_ratings(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    rng = np.random.default_rng(0)
    pairs = {(int(a), int(b)) for a, b in rng.integers(1, 30, (300, 2))}
    lines = ["person,thing,rating", *(f"{a},{b},{(a * b) % 5 + 0.5}" for a, b in sorted(pairs))]
    path = tmp_path / "ratings.csv"
    path.write_text("\n".join(lines))
    result = run("nmf", tmp_path, epochs=3, set={"data": path, "k": 3, "observed": "yes"})
    assert tuple(result.state_dict()["components"].shape) == (3, len({b for _, b in pairs}))


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_lr_learns_labels_of_a_file(table: Path, tmp_path: Path, sync: str) -> None:
    options = {"data": table, "label": "label", "rate": 0.05, "batch": 32}
    result = run("lr", tmp_path, sync=sync, epochs=5, set=options)
    assert result.metrics["accuracy"] > 0.9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs its points: --set data=FILE"),
        ({"data": "none.csv"}, "data=none.csv: there is no such file"),
        ({"k": "no"}, "--set k=no is not understood: give a whole number above 0"),
        ({"tol": "-1"}, "--set tol=-1 is not understood"),
        ({"batch": "3"}, "not known to the job kmeans: this job takes data, k, label, tol"),
    ],
)
def test_a_wrong_option_is_named_before_anything_starts(
    table: Path, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    given = {"data": str(table), **options} if options else {}
    with pytest.raises(UsageError, match=message):
        run("kmeans", tmp_path, set=given)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,b\n", {}, "has no rows"),
        ("", {}, "is empty"),
        ("a,b\n1,2\n", {"label": "c"}, "has no column 'c': it has a, b"),
        ("a\n1\n", {"label": "a"}, "has no column beside the label"),
        ("\xff\xfe,b\n1,2\n", {}, "is not a text file"),
    ],
)
def test_a_bad_file_is_named_before_anything_starts(
    tmp_path: Path, text: str, options: dict[str, str], message: str
) -> None:
    (tmp_path / "t.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises((UsageError, DataError), match=message):
        run("kmeans", tmp_path, set={"data": tmp_path / "t.csv", **options})
    assert not (tmp_path / "runs").exists()


def test_ratings_need_three_columns(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("person,thing\n1,2\n")
    with pytest.raises(UsageError, match="has no column 2: it has person, thing"):
        run("nmf", tmp_path, set={"data": tmp_path / "t.csv"})


def test_a_tolerance_of_zero_is_accepted(table: Path, tmp_path: Path) -> None:
    run("kmeans", tmp_path, sync="bspb", set={"data": table, "k": 2, "tol": 0}, epochs=3)


def test_more_clusters_than_points_end_the_job_with_a_clear_line(
    table: Path, tmp_path: Path
) -> None:
    with pytest.raises(pr.errors.JobFailed, match="k is 700, and there are only 600 points"):
        run("kmeans", tmp_path, set={"data": table, "k": 700})


def test_a_bad_row_of_the_file_is_named(table: Path, tmp_path: Path) -> None:
    lines = table.read_text().splitlines()
    lines[41] = "1.0,nan,2.0,1"
    table.write_text("\n".join(lines))
    with pytest.raises(pr.errors.JobFailed, match="row 40 has no finite number in column 'b'"):
        run("kmeans", tmp_path, set={"data": table, "k": 2})
