"""The rules for names and files that hold for the whole package."""

import ast
import re
from collections import defaultdict

from tools.newcomer import ROOT

PACKAGE = ROOT / "src" / "polyrhythm"
SOURCES = sorted(PACKAGE.rglob("*.py"))
ENTRY = re.compile(r"^\| \*\*(.+?)\*\* \|", re.MULTILINE)
MOST_ENTRIES = 50


def test_no_class_name_is_defined_in_two_modules() -> None:
    modules = defaultdict(list)
    for path in SOURCES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                modules[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: found for name, found in modules.items() if len(found) > 1} == {}


def test_the_glossary_is_short_and_every_term_is_in_use() -> None:
    entries = ENTRY.findall((ROOT / "docs" / "glossary.md").read_text())
    assert 0 < len(entries) <= MOST_ENTRIES
    text = re.sub(r"[\s_-]+", " ", "\n".join(path.read_text() for path in SOURCES).lower())
    terms = [term for entry in entries for term in entry.lower().split(" / ")]
    plain = [re.escape(term.replace("-", " ")) for term in terms]
    assert [term for term in plain if not re.search(rf"\b{term}s?\b", text)] == []
