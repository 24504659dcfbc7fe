"""The index of a user's jobs on this host: which jobs it finds, and which folders and files it
ignores."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from polyrhythm.api.secret import find_secret
from polyrhythm.engines.environment import environment
from polyrhythm.errors import UsageError
from polyrhythm.io.index import JobIndex, ListedJob
from polyrhythm.io.secretfile import create_secret, fresh_secret, parse_secret, read_secret

SECRET = fresh_secret()
AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of a user who runs no job."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.delenv("POLYRHYTHM_SECRET", raising=False)
    return dict(os.environ)


def folder_of(environ: dict[str, str]) -> Path:
    return Path(environ["XDG_STATE_HOME"]) / "polyrhythm" / "jobs"


def entry(host: str = "127.0.0.1", job: str = "j", **fields: object) -> ListedJob:
    given = {"run_dir": "/runs/a", "secret": SECRET, **fields}
    return ListedJob(host=host, port=4000, job=job, **given)


def rewrite(environ: dict[str, str], **fields: object) -> None:
    (path,) = folder_of(environ).glob("*.json")
    before = msgspec.json.decode(path.read_bytes(), type=ListedJob)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(before, **fields)))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_job_is_found_by_its_address_while_it_runs(environ: dict[str, str], host: str) -> None:
    index = JobIndex(environ)
    with index.registered(entry()) as known:
        found = index.find(host, 4000)
        assert known and found is not None and found.job == "j"
        assert index.find(host, 4001) is None
        assert index.find("192.0.2.1", 4000) is None
    assert index.find(host, 4000) is None
    assert list(folder_of(environ).iterdir()) == []


def test_a_job_that_listens_on_every_address_is_found_by_any(environ: dict[str, str]) -> None:
    index = JobIndex(environ)
    with index.registered(entry(host="0.0.0.0")), index.registered(entry(job="k")):
        assert (found := index.find("192.0.2.1", 4000)) and found.job == "j"
        assert (found := index.find("127.0.0.1", 4000)) and found.job == "k"


def test_only_the_user_can_read_the_folder_and_its_entries(environ: dict[str, str]) -> None:
    with JobIndex(environ).registered(entry()):
        folder = folder_of(environ)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (path,) = folder.iterdir()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o777])
def test_a_folder_that_others_can_enter_is_not_used(environ: dict[str, str], mode: int) -> None:
    """The index ignores a folder that other users can enter, and uses the next folder of its
    list."""
    index = JobIndex(environ)
    with index.registered(entry()):
        folder_of(environ).chmod(mode)
        assert index.find("127.0.0.1", 4000) is None
        with index.registered(entry(job="k")) as known:
            assert known
            assert (found := index.find("127.0.0.1", 4000)) and found.job == "k"


def test_a_folder_behind_a_symbolic_link_is_not_used(
    environ: dict[str, str], tmp_path: Path
) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir(mode=0o700)
    folder_of(environ).parent.mkdir(parents=True)
    folder_of(environ).symlink_to(target)
    with JobIndex(environ).registered(entry()):
        assert list(target.iterdir()) == []


@AS_ROOT
def test_a_folder_of_another_user_is_not_used(environ: dict[str, str]) -> None:
    index = JobIndex(environ)
    with index.registered(entry()):
        os.chown(folder_of(environ), 65534, 65534)
        assert index.find("127.0.0.1", 4000) is None


def test_a_job_of_another_host_is_not_found_in_a_home_that_both_share(
    environ: dict[str, str],
) -> None:
    index = JobIndex(environ)
    with index.registered(entry()):
        rewrite(environ, boot="another", machine="another")
        assert index.find("127.0.0.1", 4000) is None
        with index.registered(entry(job="k")):
            assert len(list(folder_of(environ).iterdir())) == 2


def test_the_entry_of_a_killed_job_is_removed_by_the_next_job(environ: dict[str, str]) -> None:
    index = JobIndex(environ)
    gone = subprocess.Popen(["true"])
    gone.wait()
    with index.registered(entry()):
        rewrite(environ, pid=gone.pid)
        with index.registered(entry(job="k")):
            (path,) = folder_of(environ).iterdir()
            assert path.name == "4000-k.json"


def test_the_entry_of_a_killed_job_does_not_hide_a_running_job(environ: dict[str, str]) -> None:
    """A killed job has left an entry with the same address. The running job listens on every
    address of the host."""
    index = JobIndex(environ)
    gone = subprocess.Popen(["true"])
    gone.wait()
    with index.registered(entry()):
        with index.registered(entry(host="0.0.0.0", job="k")):
            path = folder_of(environ) / "4000-j.json"
            left = msgspec.json.decode(path.read_bytes(), type=ListedJob)
            path.write_bytes(msgspec.json.encode(msgspec.structs.replace(left, pid=gone.pid)))
            assert (found := index.find("127.0.0.1", 4000)) and found.job == "k"
        assert index.find("127.0.0.1", 4000) is None


def test_a_damaged_entry_is_ignored(environ: dict[str, str]) -> None:
    index = JobIndex(environ)
    with index.registered(entry()):
        (folder_of(environ) / "4000-x.json").write_text("{")
        assert index.find("127.0.0.1", 4000) is not None


def test_a_user_without_any_folder_has_no_index(environ: dict[str, str], tmp_path: Path) -> None:
    for name in ("state", f"polyrhythm-{os.getuid()}"):
        (tmp_path / name).write_text("a file is in the way")
    with JobIndex(environ).registered(entry()) as known:
        assert not known


def test_the_secret_is_found_through_the_index(environ: dict[str, str]) -> None:
    with JobIndex(environ).registered(entry(path="/jobs/mine.py")):
        known = find_secret("127.0.0.1", 4000, None)
    assert (known.secret, known.job, known.path) == (SECRET, "j", "/jobs/mine.py")


def test_jobs_are_found_by_the_name_and_the_folder_of_their_run(environ: dict[str, str]) -> None:
    index = JobIndex(environ)
    gone = subprocess.Popen(["true"])
    gone.wait()
    with index.registered(entry()):
        rewrite(environ, pid=gone.pid)
        assert index.of_run("a") == []
    with index.registered(entry()), index.registered(entry(job="k", run_dir="/others/a")):
        assert [each.job for each in index.of_run("a")] == ["j", "k"]
        assert [each.job for each in index.of_run("/others/a")] == ["k"]
        assert index.of_run("b") == index.of_run("") == []


def test_a_file_comes_before_the_environment_and_that_before_the_index(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The secret is removed from the environment even if it comes from a file, because a job may
    start processes."""
    create_secret(tmp_path / "named")
    with JobIndex(environ).registered(entry()):
        for file, expected in (
            (tmp_path / "named", read_secret(tmp_path / "named")),
            (None, parse_secret(b"e" * 32, "")),
        ):
            monkeypatch.setenv("POLYRHYTHM_SECRET", "e" * 32)
            known = find_secret("127.0.0.1", 4000, file)
            assert known.secret == expected
            assert known.path == "" and "POLYRHYTHM_SECRET" not in os.environ


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_an_empty_variable_is_an_error(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("POLYRHYTHM_SECRET", text)
    with pytest.raises(UsageError, match=r"\$POLYRHYTHM_SECRET is empty"):
        find_secret("127.0.0.1", 4000, None)


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o620, 0o660])
def test_a_secret_file_that_others_can_access_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "secret"
    create_secret(file)
    file.chmod(mode)
    with pytest.raises(UsageError, match="chmod 600"):
        read_secret(file)


@AS_ROOT
def test_a_secret_file_of_another_user_is_refused(tmp_path: Path) -> None:
    """The owner of the file can read and change it, whatever its mode is."""
    file = tmp_path / "secret"
    create_secret(file)
    os.chown(file, 65534, -1)
    with pytest.raises(UsageError, match="belongs to another user"):
        read_secret(file)


def test_a_pipe_in_place_of_a_secret_file_is_refused_without_waiting(tmp_path: Path) -> None:
    """The secret is read in another process: if the reader waited for a writer, it would block the
    test."""
    pipe = tmp_path / "secret"
    os.mkfifo(pipe, 0o600)
    code = (
        "import sys; from pathlib import Path; from polyrhythm.io.secretfile import read_secret;"
        " read_secret(Path(sys.argv[1]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(pipe)], capture_output=True, text=True, timeout=60
    )
    assert "is not a regular file" in ended.stderr


def test_a_secret_is_written_once_and_to_no_other_place(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        create_secret(file)
    assert not (tmp_path / "elsewhere").exists()


def test_two_secrets_differ(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        secrets = {create_secret(tmp_path / str(number)).text for number in range(10)}
        modes = {stat.S_IMODE((tmp_path / str(n)).stat().st_mode) for n in range(10)}
    finally:
        os.umask(before)
    assert len(secrets) == 10 and modes == {0o600}


def test_the_processes_of_a_job_do_not_inherit_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYRHYTHM_SECRET", "e" * 32)
    assert "e" * 32 not in environment([1]).values()


@pytest.mark.parametrize(
    ("before", "now", "left"),
    [("a/1", "a/1", 1), ("a/1", "b/1", 2), ("a/1", "a/2", 2), ("", "", 2)],
    ids=["a reboot", "another name", "another id", "unknown"],
)
def test_a_reboot_ends_all_jobs_of_its_machine(
    environ: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    before: str,
    now: str,
    left: int,
) -> None:
    """The job of another machine, which shares the home folder, may run."""
    index = JobIndex(environ)
    monkeypatch.setattr("polyrhythm.io.index._machine", lambda: before)
    killed = index._register(entry())
    assert killed is not None
    rewrite(environ, boot="before the reboot")
    monkeypatch.setattr("polyrhythm.io.index._machine", lambda: now)
    with index.registered(entry(job="next")):
        assert len(list(folder_of(environ).glob("*.json"))) == left
