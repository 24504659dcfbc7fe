"""A terminal shows names and reasons as plain text, even if they contain control sequences.

The lead refuses names with control sequences, so journals of this version have none. But `status`,
`story` and `why` also read journals of other versions.
"""

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent.parent / "observe"))
from polyrhythm.core.values import shown
from polyrhythm.observe import tables
from polyrhythm.observe.journal import FileJournal
from polyrhythm.observe.progress import ProgressDisplay
from polyrhythm.observe.runs import Run
from polyrhythm.observe.state import RunState
from polyrhythm.observe.story import tell
from polyrhythm.wire.messages import JobSpec
from tests.observe.journals import left, line, rounds, totals

NAMES = [
    "[/]",
    "[bold]",
    "[red]x[/red]",
    "a\x1b[2Jb",
    "a\x1b]0;title\x07",
    "x\rpolyrhythm: done",
    "\u202eabc",
]
JOB = JobSpec(job="j", workers=1)


def journal_of(name: str) -> list[dict[str, object]]:
    return [
        line(0.0, "joined", worker=0, name=name, epoch=1),
        rounds(1.0, 1, {"0": totals(1, 0.5)}, contributions=1),
        line(1.5, "refused", reason="refused", fields={"detail": f"{name} was refused"}),
        {**left(2.0, 0, "failed", detail=name), "name": name},
    ]


def harmless(text: str) -> bool:
    """Assert that the output has no control character except line ends."""
    return all(c.isprintable() or c == "\n" for c in text)


@pytest.mark.parametrize("name", NAMES)
def test_tables_show_names_as_text(name: str) -> None:
    state = RunState()
    for each in journal_of(name):
        state.take(each)
        console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None)
        console.print(tables.live(state, JOB, 3.0))
        console.print(tables.status(Run(Path("runs/x"), JOB, state, None, None, True, 3.0), 200))
        printed = console.file.getvalue()
        assert harmless(printed), printed
        assert shown(name) in printed or state.opened_s is None


@pytest.mark.parametrize("name", NAMES)
def test_progress_shows_names_as_text(name: str, tmp_path: Path) -> None:
    journal = FileJournal(tmp_path / "journal.jsonl")
    output = io.StringIO()
    console = Console(file=output, width=200, highlight=False, soft_wrap=True)
    with ProgressDisplay(
        tmp_path / "journal.jsonl", quiet=False, job=JOB, console=console
    ) as progress:
        for each in journal_of(name):
            fields = {key: value for key, value in each.items() if key not in ("at_s", "what")}
            journal.note(str(each["what"]), **fields)
        progress.tick()
        progress.say(f"{name} failed")
    journal.close()
    assert harmless(output.getvalue()), output.getvalue()
    assert f"polyrhythm: {shown(name)} failed" in output.getvalue()


@pytest.mark.parametrize("name", NAMES)
def test_a_story_shows_names_as_text(name: str) -> None:
    told = "\n".join(tell(journal_of(name), None))
    assert shown(name) in shown(told) and harmless(shown(told))
