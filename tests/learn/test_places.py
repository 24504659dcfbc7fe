"""The folders in which a data set is looked for, and their order."""

from pathlib import Path

import pytest

from polyrhythm.errors import DataError, UsageError
from polyrhythm.learn.data import fetch, places
from polyrhythm.learn.data.catalogue import SETS, DataSet, File, Form, known

pytestmark = pytest.mark.usefixtures("no_data")
TOYS = DataSet(
    "toys",
    "for tests",
    ("http://127.0.0.1:9/",),
    (
        Form("complete", (File("a.bin", 1, "00"), File("b.bin", 1, "00"))),
        Form("a part", (File("part.bin", 1, "00"),)),
    ),
)


def put(folder: Path, *names: str) -> Path:
    """Make a folder that holds these files of the data set."""
    (folder / "toys").mkdir(parents=True)
    for name in names:
        (folder / "toys" / name).write_bytes(b"x")
    return folder


def find(data_dir: Path | None, environ: dict[str, str]) -> places.FoundFolder | None:
    return places.find(TOYS, places.places(data_dir, environ))


def test_the_first_place_that_holds_the_set_is_used(tmp_path: Path) -> None:
    """All four folders hold the set. The first one is used. When it is removed, the next one is
    used."""
    given, named = put(tmp_path / "given", "a.bin", "b.bin"), put(tmp_path / "named", "part.bin")
    cache = put(tmp_path / "xdg" / "polyrhythm", "a.bin", "b.bin")
    debian = put(tmp_path / "debian", "a.bin", "b.bin")
    environ = {"POLYRHYTHM_DATA": str(named), "XDG_CACHE_HOME": str(tmp_path / "xdg")}
    for place in (given, named, cache, debian):
        found = find(given, environ)
        assert found is not None and found.folder == place / "toys"
        for file in found.folder.iterdir():
            file.unlink()
    assert find(given, environ) is None


def test_an_incomplete_set_is_not_found(tmp_path: Path) -> None:
    assert find(put(tmp_path / "half", "a.bin"), {}) is None


def test_the_complete_form_is_preferred_to_a_part(tmp_path: Path) -> None:
    found = find(put(tmp_path / "both", "part.bin", "a.bin", "b.bin"), {})
    assert found is not None and found.form.what == "complete"
    found = find(put(tmp_path / "part", "part.bin", "a.bin"), {})
    assert found is not None and found.form.what == "a part"


@pytest.mark.parametrize("xdg", ["", "relative/cache"])
def test_the_default_cache_is_in_the_home_folder(tmp_path: Path, xdg: str) -> None:
    cache = put(tmp_path / ".cache" / "polyrhythm", "part.bin")
    found = find(None, {"HOME": str(tmp_path), "XDG_CACHE_HOME": xdg})
    assert found is not None and found.folder == cache / "toys"


def test_the_error_for_a_missing_set_names_every_place(tmp_path: Path) -> None:
    """No process listens on port 9 of this host, so the download fails. The error names every
    folder that was searched."""
    with pytest.raises(DataError) as caught:
        fetch.obtain(TOYS, tmp_path / "given", {"XDG_CACHE_HOME": str(tmp_path / "xdg")})
    for word in (
        f"--data-dir ({tmp_path}/given/toys)",
        "$POLYRHYTHM_DATA (not given)",
        f"the cache ({tmp_path}/xdg/polyrhythm/toys)",
        f"({tmp_path}/debian/toys)",
        "http://127.0.0.1:9/a.bin cannot be reached",
        "'polyrhythm data fetch toys'",
    ):
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_large_sets_are_fetched_only_on_request(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="2.8 GB are downloaded only on request.*data fetch higgs"):
        fetch.obtain(SETS["higgs"], tmp_path, {})
    assert list(tmp_path.iterdir()) == []


def test_the_error_for_an_unknown_name_lists_the_known_names() -> None:
    with pytest.raises(UsageError, match="no data set 'minst': choose one of mnist, fashion-mnist"):
        known("minst")


def test_the_catalogue_has_the_right_sizes_and_checksums(real_data: Path) -> None:
    """The small files of the real sets are compared with the catalogue."""
    from polyrhythm.learn.data.catalogue import is_right

    checked = 0
    for dataset in SETS.values():
        for file in (file for form in dataset.forms for file in form.files):
            path = real_data / dataset.name / file.name
            if path.is_file():
                assert path.stat().st_size == file.nbytes
                if file.nbytes < 3_000_000:
                    assert is_right(path, file), path
                    checked += 1
    assert checked > 5
