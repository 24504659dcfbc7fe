"""An operator on another machine, who has the address and the secret of a running job and no folder of
its run."""

import json
import shutil
from pathlib import Path

from tests.commands.start import run

_LONG_S = 300.0


def commands_reach(address: str, secret: Path, folder: Path) -> None:
    """Describe the job with all commands that need its journal, let it take a checkpoint, and stop it.
    `folder`: a new folder, in which this operator works."""
    folder.mkdir()
    shutil.copy(secret, folder / "secret")
    env = {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}

    def ask(command: str, *more: str) -> str:
        words = (command, address, "--secret-file", "secret", *more)
        done = run(*words, cwd=folder, env=env, timeout_s=_LONG_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    status = json.loads(ask("status", "--json"))
    assert status["is"] == "running"
    assert "worker-0" in {member["name"] for member in status["members"]}
    assert json.loads(ask("why", "--json"))["is"] == "running"
    assert "worker-0 joined" in ask("story")
    assert "checkpoint 1 of round" in ask("checkpoint")
    assert "stopped on request of" in ask("stop")
