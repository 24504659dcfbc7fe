"""Writes the tables of benchmarks into documents, between two markers."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def write(name: str, text: str, document: Path = README) -> None:
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, found, rest = document.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise SystemExit(f"{document.name} has no place for this table: {begin} and {end}")
    document.write_text(f"{before}{begin}\n{text}\n{end}{after}")
