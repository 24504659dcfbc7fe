"""The commands and links in the documentation are valid."""

import ast
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from polyrhythm.cli.main import make_app
from polyrhythm.core.sync.registry import POLICIES
from tools.newcomer import PAGES, ROOT, blocks

KNOWN = {"cd", "sleep", "wait", "kill", "cat", "ls", "python", "head", "echo", "export"}
KNOWN |= {"torchrun", "srun", "scp", "ssh", "git", "pip"}
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
TARGET = re.compile(r"^([a-z][\w-]*):", re.MULTILINE)
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("benchmarks/*/*.md"))
    if path.name != "CHANGELOG.md"
)
LINKING = [*DOCUMENTS, *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/*/*.md"))]
COMMANDS = [
    (f"{page}:{block.line}", command.strip())
    for page in DOCUMENTS
    for block in blocks(page)
    for line in block.lines
    for command in re.split(r"&&|\|\||[;|&]", line)
    if command.strip()
]


def parse(words: list[str]) -> None:
    """Parse the command as the program would, without running it."""
    command: Any = get_command(make_app())
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    if words != ["--help"]:
        command.make_context("polyrhythm", words)


def test_documents_contain_commands() -> None:
    assert {where.partition(":")[0] for where, _ in COMMANDS} > set(PAGES)


@pytest.mark.parametrize(("where", "command"), COMMANDS)
def test_every_command_in_the_documents_is_valid(where: str, command: str) -> None:
    words = shlex.split(command)
    while "=" in words[0]:
        del words[0]
    program, *rest = words
    if program == "polyrhythm":
        parse(rest)
    elif program == "make":
        assert set(rest) <= set(TARGET.findall((ROOT / "Makefile").read_text()))
    else:
        assert program in KNOWN, where


def test_every_policy_that_a_message_names_is_described() -> None:
    described = (ROOT / "docs" / "sync.md").read_text()
    for entry in POLICIES.values():
        assert f"`{entry.name}" in described, entry.name


def test_every_policy_that_the_text_of_a_message_names_is_known() -> None:
    """docs/sync.md describes every policy of the registry, so it also describes every policy that a
    message names."""
    named = {
        (name, path.name)
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for name in re.findall(r"--sync ([a-z][a-z-]*)", node.value)
    }
    assert named, "some messages name policies"
    assert {each for each in named if each[0] not in POLICIES} == set()


def test_an_unknown_flag_in_a_document_is_found() -> None:
    with pytest.raises(Exception, match="--wrokers"):
        parse(["train", "digits", "--wrokers", "3"])


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub and Sphinx make from the headings of the page."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in HEADING.findall(page.read_text())
    }


@pytest.mark.parametrize("page", LINKING)
def test_every_link_in_a_document_has_a_target(page: str) -> None:
    path = ROOT / page
    links = [link for link in LINK.findall(path.read_text()) if "://" not in link[0]]
    missing = [
        f"{file}#{anchor}"
        for file, anchor in links
        if not (target := path.parent / file if file else path).exists()
        or (anchor and anchor not in anchors(target))
    ]
    assert not missing


def test_the_table_of_contents_of_the_site_lists_every_page() -> None:
    """`docs/_toc.yml` has the pages in the order of the site. Add a new page there; `make site` fails
    for a page that is not in it."""
    docs = ROOT / "docs"
    listed = re.findall(r"- file: (\S+)", (docs / "_toc.yml").read_text())
    assert len(listed) == len(set(listed))
    pages = {str(path.relative_to(docs).with_suffix("")) for path in docs.rglob("*.md")}
    others = {page for page in pages if page.startswith("decisions/")}
    assert set(listed) | {"index"} == pages - others | {"decisions/README"}


def test_the_index_of_decisions_has_every_number_that_is_cited() -> None:
    """A record that was merged into another one keeps its number: the index says where it is."""
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    known = re.findall(r"^\| (\d{3}) \|", index, re.MULTILINE)
    assert len(known) == len(set(known))
    records = {path.name[:3] for path in folder.glob("[0-9]*.md")}
    assert set(re.findall(r"^\| (\d{3}) \| \[", index, re.MULTILINE)) == records
    files = (
        path
        for name, kind in (("src", "py"), ("tests", "py"), ("benchmarks", "*"), ("docs", "md"))
        for path in (ROOT / name).rglob(f"*.{kind}")
        if path.suffix in (".py", ".md")
    )
    cited = {
        (number, str(path.relative_to(ROOT)))
        for path in files
        for number in re.findall(r"[Dd]ecisions?[ /](\d{3})\b", path.read_text())
    }
    assert len(cited) > 50
    assert not {each for each in cited if each[0] not in known}


def test_every_path_in_the_architecture_page_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    paths = set(re.findall(r"`((?:\w+/)+\w*(?:\.py)?)`", page))
    assert len(paths) > 50
    roots = (ROOT, ROOT / "src" / "polyrhythm")
    assert not [path for path in paths if not any((root / path).exists() for root in roots)]


@pytest.mark.parametrize("machine", ["lead", "server", "worker"])
def test_every_part_in_the_architecture_page_is_a_module_or_a_folder(machine: str) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.partition(f"**The {machine}** (`core/{machine}`)")[2].partition("\n\n**The ")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    parts = [part for row in rows for part in re.findall(r"`(\w+)`", row)]
    assert parts
    folder = ROOT / "src" / "polyrhythm" / "core" / machine
    modules = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert not [part for part in parts if part not in modules]
