"""Every link of a document to a file of the repository leads to a file, and to a heading of it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path.relative_to(ROOT)
    for folder, pattern in (
        (ROOT, "*.md"),
        (ROOT / "docs", "**/*.md"),
        (ROOT / "benchmarks", "**/*.md"),
    )
    for path in folder.glob(pattern)
)
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")


def anchors(document: Path) -> set[str]:
    """The names by which the headings of a document are linked."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_links_lead_somewhere(document: Path) -> None:
    path = ROOT / document
    for name, anchor in LINK.findall(path.read_text()):
        linked = (path.parent / name).resolve() if name else path
        assert linked.exists(), f"{document} links to {name}"
        if anchor and linked.suffix == ".md":
            assert anchor in anchors(linked), f"{document} links to {name}#{anchor}"
