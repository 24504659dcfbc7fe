"""Progress on stderr while a job runs, and the summary at its end."""

import sys
import time
from pathlib import Path
from typing import Any

from polyrhythm.observe.journal import JournalReader

_LINE_EVERY_S = 2.0


class Progress:
    def __init__(self, journal: Path, *, quiet: bool) -> None:
        self._reader = JournalReader(journal)
        self._quiet = quiet
        self._line_s = time.monotonic()
        self._round: dict[str, Any] | None = None

    def say(self, line: str) -> None:
        """Something the user should know at once, quiet or not."""
        print(f"polyrhythm: {line}", file=sys.stderr, flush=True)

    def tick(self) -> None:
        for line in self._reader.new_lines():
            self._take(line)
        if self._round is not None and time.monotonic() > self._line_s + _LINE_EVERY_S:
            self._line_s = time.monotonic()
            self._show(_round_line(self._round))
            self._round = None

    def _take(self, line: dict[str, Any]) -> None:
        match line["what"]:
            case "rounds" if line["round"] > 0:
                self._round = line
                if line["reason"] == "timer":
                    self._show(f"round {line['round']}: the timer fired; not all were waited for")
            case "joined":
                self._show(f"{line['name']} joined")
            case "placed":
                self._show(f"{line['nbytes'] / 1e6:.2f} MB in slices, per server: {line['slices']}")
            case "left" if line["reason"] != "it was done":
                self._show(f"{line['name']} left: {line['reason']}")
            case "refused":
                self._show(line["reason"])

    def _show(self, text: str) -> None:
        if not self._quiet:
            print(text, file=sys.stderr, flush=True)

    def finish(self, result: dict[str, Any], run_dir: Path) -> None:
        self.tick()
        print(summary_text(result, run_dir))


def _round_line(line: dict[str, Any]) -> str:
    objective = "" if line["objective"] is None else f"  objective {line['objective']:.4f}"
    return f"round {line['round']}  pass {line['passes']}{objective}"


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f}%" if whole else "-"


def summary_text(result: dict[str, Any], run_dir: Path) -> str:
    rows = [
        f"{result['job']}: {result['ended'] or 'did not end by itself'}",
        f"  {result['rounds']} rounds, {result['contributions']} contributions,"
        f" {result['points']} points in {result['seconds']:.2f} s"
        f" ({result['points_per_s']:.0f} points/s) over {result['link']} links",
    ]
    if result["accuracy"] is not None:
        rows.append(f"  accuracy {result['accuracy']:.4f}")
    if result["objective"] is not None:
        rows.append(f"  objective {result['objective']:.4f}")
    for name, w in sorted(result["per_worker"].items()):
        whole = w["compute_s"] + w["wait_s"] + w["transfer_s"]
        rows.append(
            f"  {name}: {w['contributions']} contributions, computing"
            f" {_share(w['compute_s'], whole)}, waiting {_share(w['wait_s'], whole)},"
            f" transferring {_share(w['transfer_s'], whole)}"
        )
    folds = ", ".join(f"{server} {count}" for server, count in sorted(result["folds"].items()))
    rows.append(f"  folds: {folds or 'none'}")
    rows.append(f"  journal: {run_dir / 'journal.jsonl'}")
    return "\n".join(rows)
