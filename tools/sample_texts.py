"""Draws a random sample of the repository's texts, for a reader who judges whether they are clear.

`python -m tools.sample_texts --seed 7 --count 60` prints 60 texts of every group, each with its file
and line. The groups are *core* and *source* (docstrings and comments of `core`, and of the rest of
the package), *tests* (those of tests, tools and benchmarks), *documents* (sentences of the
documentation) and *messages* (errors, help and lines for the terminal). The same seed gives the same
sample. `--group NAME` draws from this group only, and `--all` prints every text of a file or folder:
`python -m tools.sample_texts --all src/polyrhythm/core/worker`.
"""

import argparse
import ast
import io
import random
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

_WORDS = 4
"""The least number of words of a text in the sample. Shorter texts cannot be judged by
themselves."""
_DIRECTIVE = re.compile(r"#\s*(type:|noqa|pragma|ruff:|mypy:|fmt:|--|!)")
"""Comments that are no texts: for tools, or titles of sections."""
_FENCE = re.compile(r"```.*?```|<!--.*?-->", re.DOTALL)
_SENTENCE = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`*\"])")


@dataclass(frozen=True, slots=True)
class Text:
    kind: str
    place: str
    words: str

    @property
    def group(self) -> str:
        """The group of texts to which a text belongs; each group is judged by itself."""
        if self.kind in ("message", "documentation"):
            return "messages" if self.kind == "message" else "documents"
        if self.place.startswith("src/polyrhythm/core/"):
            return "core"
        return "source" if self.place.startswith("src/") else "tests"


GROUPS = ("core", "source", "tests", "documents", "messages")


def texts_of(root: Path) -> list[Text]:
    """All texts of the package, the tools, the tests, the benchmarks and the documentation."""
    found: list[Text] = []
    for folder in ("src", "tests", "tools", "benchmarks"):
        for path in sorted((root / folder).rglob("*.py")):
            found += _python_texts(path.read_text(), str(path.relative_to(root)))
    for path in (root / "README.md", *sorted((root / "docs").rglob("*.md"))):
        found += _sentences(path.read_text(), str(path.relative_to(root)))
    return [text for text in found if len(text.words.split()) >= _WORDS]


def sample(texts: list[Text], count: int, seed: int) -> list[Text]:
    """Draw `count` texts of every group; all of a group that has fewer."""
    drawn: list[Text] = []
    for group in GROUPS:
        of_group = [text for text in texts if text.group == group]
        drawn += random.Random(seed).sample(of_group, min(count, len(of_group)))
    return drawn


def _python_texts(source: str, name: str) -> Iterator[Text]:
    tree = ast.parse(source)
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        for body in (getattr(node, "body", None),):
            if not isinstance(body, list):
                continue
            for statement in body:
                if _is_text(statement):
                    docstrings.add(id(statement.value))
                    place = f"{name}:{statement.lineno}"
                    yield Text("docstring", place, _paragraphs(statement.value.value))
    if name.startswith("src"):
        yield from _messages(tree, name, docstrings)
    yield from _comments(source, name)


def _is_text(statement: ast.stmt) -> bool:
    """Whether this statement is a docstring, or a string that describes the attribute above it."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _messages(tree: ast.Module, name: str, docstrings: set[int]) -> Iterator[Text]:
    """Strings with several words: errors, help texts, lines for the terminal. `{}` stands for a
    value."""
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside.update(id(part) for part in node.values)
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            words = _plain("".join(str(part) for part in parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in docstrings or id(node) in inside:
                continue
            words = _plain(node.value)
        else:
            continue
        if re.search(r"[a-z]+ [a-z]+", words):
            yield Text("message", f"{name}:{node.lineno}", words)


def _comments(source: str, name: str) -> Iterator[Text]:
    """The comments of a file. Lines of comments that follow each other are one text. A comment
    behind code is a text of its own."""
    lines: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or _DIRECTIVE.match(token.string):
            continue
        row, behind_code = token.start[0], bool(token.line[: token.start[1]].strip())
        if lines and (row != last + 1 or behind_code):
            yield Text("comment", f"{name}:{first}", _plain(" ".join(lines)))
            lines = []
        if not lines:
            first = row
        lines.append(token.string.lstrip("# "))
        last = -1 if behind_code else row
    if lines:
        yield Text("comment", f"{name}:{first}", _plain(" ".join(lines)))


def _sentences(source: str, name: str) -> Iterator[Text]:
    prose = _FENCE.sub(lambda found: "\n" * found[0].count("\n"), source)
    line = 1
    for paragraph in re.split(r"(\n\s*\n|\n(?=[|#]|\s*[-*] ))", prose):
        text = paragraph.strip()
        if text and not text.startswith(("#", "|", "!")):
            for sentence in _SENTENCE.split(_plain(text.lstrip("-* "))):
                yield Text("documentation", f"{name}:{line}", sentence)
        line += paragraph.count("\n")


def _plain(text: str) -> str:
    return " ".join(text.split())


def _paragraphs(text: str) -> str:
    """The paragraphs of a docstring, each as one line."""
    return "\n".join(_plain(paragraph) for paragraph in re.split(r"\n\s*\n", text.strip()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60, help="how many texts of every group")
    parser.add_argument("--group", choices=GROUPS)
    parser.add_argument("--all", metavar="PATH", help="all texts of this file or folder")
    chosen = parser.parse_args()
    texts = [
        text
        for text in texts_of(Path(__file__).parents[1])
        if chosen.group in (None, text.group) and text.place.startswith(chosen.all or "")
    ]
    drawn = texts if chosen.all else sample(texts, chosen.count, chosen.seed)
    for number, text in enumerate(drawn, 1):
        print(f"{number}. [{text.group}, {text.kind}] {text.place}\n{indent(text.words, '   ')}")


if __name__ == "__main__":
    main()
