"""A mutant: one small fault, put into code that is named and not into a file or a line.

A `Change` names a definition (`runtime:Holdings.add`: a layer of the package, and a function, method or
constant in it) and replaces one expression, or a run of statements, inside it. Patterns are compared as
syntax trees, so comments and line breaks do not matter. A name or a pattern that is not found exactly
once is an error: code that has changed needs its mutants reviewed.
"""

import ast
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

Body = list[ast.stmt]
_Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


class Outdated(Exception):
    """A mutant does not fit the code any more."""


@dataclass(frozen=True, slots=True)
class Change:
    """In `code`, replace `old` by `new`: expressions, or statements."""

    code: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    breaks: str
    """What goes wrong, in one sentence."""
    changes: tuple[Change, ...]
    tests: tuple[str, ...]
    """The tests that must fail, as pytest names them."""

    def __post_init__(self) -> None:
        if not self.changes:
            raise ValueError(f"the mutant {self.name} changes nothing")


def mutant(name: str, breaks: str, code: str, old: str, new: str, *tests: str) -> Mutant:
    """A mutant with one change."""
    return Mutant(name, breaks, (Change(code, old, new),), tests)


def write_mutated(mutant: Mutant, package: Path, into: Path) -> None:
    """Copy the package to `into`/NAME, with the mutant's changes. Compiled files are copied too: they
    stay valid for every module that does not change."""
    sources = mutated_sources(mutant, package)
    copy = into / package.name
    shutil.copytree(package, copy)
    for path, source in sources.items():
        (copy / path.relative_to(package)).write_text(source)


def mutated_sources(mutant: Mutant, package: Path) -> dict[Path, str]:
    """The new source of every module that the mutant changes."""
    trees: dict[Path, ast.Module] = {}
    for change in mutant.changes:
        path = _find(change.code, package)
        tree = trees.setdefault(path, ast.parse(path.read_text()))
        (definition,) = _definitions(tree, change.code.partition(":")[2])
        found = _replace(definition, change)
        if found != 1:
            raise Outdated(
                f"{mutant.name}: {change.old!r} is in {change.code} {found} times, not once"
            )
    return {path: ast.unparse(ast.fix_missing_locations(tree)) for path, tree in trees.items()}


def _find(code: str, package: Path) -> Path:
    layer, _, name = code.partition(":")
    last = name.rpartition(".")[2]
    found = [
        path
        for path in sorted((package / layer).rglob("*.py"))
        if last in (text := path.read_text())
        for _ in _definitions(ast.parse(text), name)
    ]
    if len(found) != 1:
        raise Outdated(f"{code} is defined {len(found)} times, not once")
    return found[0]


def _definitions(within: ast.Module | ast.ClassDef, name: str) -> list[_Definition]:
    first, _, rest = name.partition(".")
    found: list[_Definition] = [node for node in within.body if _name(node) == first]
    if not rest:
        return found
    classes = [node for node in found if isinstance(node, ast.ClassDef)]
    return [inner for node in classes for inner in _definitions(node, rest)]


def _name(node: ast.stmt) -> str | None:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return name
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return None


def _replace(definition: _Definition, change: Change) -> int:
    """How many times the pattern was there; all of them are replaced."""
    old, new = ast.parse(change.old).body, ast.parse(change.new).body
    match old, new:
        case [ast.Expr(value=expression)], [ast.Expr(value=instead)]:
            replacing = _Expressions(ast.dump(expression), instead)
            replacing.visit(definition)
            return replacing.found
    return sum(_replace_run(body, old, new) for body in _bodies(definition))


class _Expressions(ast.NodeTransformer):
    def __init__(self, old: str, new: ast.expr) -> None:
        self._old = old
        self._new = new
        self.found = 0

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.expr) and ast.dump(node) == self._old:
            self.found += 1
            return self._new
        return self.generic_visit(node)


def _bodies(definition: ast.AST) -> Iterator[Body]:
    for node in ast.walk(definition):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list):
                yield body


def _replace_run(body: Body, old: Sequence[ast.stmt], new: Sequence[ast.stmt]) -> int:
    wanted = [ast.dump(statement) for statement in old]
    found = 0
    for at in range(len(body) - len(wanted), -1, -1):
        if [ast.dump(statement) for statement in body[at : at + len(wanted)]] == wanted:
            body[at : at + len(wanted)] = new
            found += 1
    return found
