"""A mutant is one small fault. It names the function or constant that it changes, not a file or
line.

A `Change` names a definition, such as `runtime:SliceStore.add`: a layer of the package, and a
function, method or constant in that layer. It replaces one expression, or consecutive statements, of
this definition. Patterns are compared as syntax trees, so comments and line breaks do not matter. A name
or a pattern that is not found exactly once is an error: when code changes, its mutants must be reviewed.
"""

import ast
import functools
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

_Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


class Outdated(Exception):
    """A mutant does not fit the code any more."""


@dataclass(frozen=True, slots=True)
class Change:
    """Replace `old` by `new` in the definition `code`. Both are expressions, or both are
    statements."""

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
    """Tests as pytest names them. At least one of them must fail."""
    slow: bool = False
    """Whether the tests of the mutant take more than about a second on an idle machine. `make test`
    leaves such mutants out."""


def mutant(
    name: str, breaks: str, code: str, old: str, new: str, *tests: str, slow: bool = False
) -> Mutant:
    """A mutant with one change."""
    return Mutant(name, breaks, (Change(code, old, new),), tests, slow)


def write_mutated(mutant: Mutant, package: Path, into: Path) -> None:
    """Make a copy of the package with the mutant's changes in the folder `into`. Files that do not
    change, including compiled files, are symbolic links."""
    sources = mutated_sources(mutant, package)
    copy = into / package.name
    copy.mkdir()
    _link_contents(package, copy)
    for path, source in sources.items():
        changed = copy / path.relative_to(package)
        for folder in reversed(changed.relative_to(copy).parents):
            _make_real(package / folder, copy / folder)
        changed.unlink()
        changed.write_text(source)
        _make_real(path.parent / "__pycache__", changed.parent / "__pycache__")
        for compiled in changed.parent.glob(f"__pycache__/{changed.stem}.*"):
            compiled.unlink()


def _make_real(original: Path, link: Path) -> None:
    """Replace a link to a folder by a folder of links to its contents."""
    if link.is_symlink():
        link.unlink()
        link.mkdir()
        _link_contents(original, link)


def _link_contents(original: Path, folder: Path) -> None:
    for entry in original.iterdir():
        (folder / entry.name).symlink_to(entry)


def mutated_sources(mutant: Mutant, package: Path) -> dict[Path, str]:
    """The new source of every module that the mutant changes."""
    statements: dict[Statement, ast.Module] = {}
    for change in mutant.changes:
        place = find(change.code, package)
        tree = statements.get(place) or statements.setdefault(place, place.parse())
        _apply(change, tree, mutant.name)
    sources: dict[Path, list[str]] = {}
    for place in sorted(statements, key=lambda place: place.first, reverse=True):
        lines = sources.setdefault(place.path, place.path.read_text().split("\n"))
        lines[place.first - 1 : place.last] = ast.unparse(statements[place]).split("\n")
    return {path: "\n".join(lines) for path, lines in sources.items()}


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of a module. Parsing, writing or compiling one statement takes a fraction of the
    time that the whole module takes."""

    path: Path
    first: int
    """The line number at which the statement begins."""
    last: int

    def parse(self) -> ast.Module:
        lines = self.path.read_text().split("\n")[self.first - 1 : self.last]
        return ast.parse("\n" * (self.first - 1) + "\n".join(lines))


def _apply(change: Change, tree: ast.Module, name: str) -> None:
    (definition,) = _definitions(tree, _name_of(change))
    found = _replace(definition, change)
    if found != 1:
        raise Outdated(f"{name}: {change.code} holds {change.old!r} {found} times, not once")
    ast.fix_missing_locations(definition)


def _name_of(change: Change) -> str:
    return change.code.partition(":")[2]


@dataclass(frozen=True, slots=True)
class Patch:
    """New code for one function."""

    module: str
    names: tuple[str, ...]
    """The name of the function, after the names of the classes around it."""
    code: CodeType


def patches(mutant: Mutant, package: Path) -> list[Patch] | None:
    """The new code of every function that the mutant changes. Returns None if it changes anything
    else, such as a constant or the default of a parameter."""
    statements: dict[Statement, ast.Module] = {}
    changed: list[tuple[Statement, tuple[str, ...]]] = []
    for change in mutant.changes:
        place = find(change.code, package)
        tree = statements.get(place) or statements.setdefault(place, place.parse())
        (definition,) = _definitions(tree, _name_of(change))
        if not isinstance(definition, ast.FunctionDef):
            return None
        before = _head(definition)
        _apply(change, tree, mutant.name)
        if _head(definition) != before:
            return None
        changed.append((place, tuple(_name_of(change).split("."))))
    found = []
    for place, names in changed:
        tree = ast.Module([*_imports(place.path), *_alone(statements[place].body, names)], [])
        code = _code_of(compile(tree, str(place.path), "exec", dont_inherit=True), names)
        if code is None:
            return None
        inside = place.path.relative_to(package.parent).with_suffix("").parts
        module = ".".join(inside[:-1] if inside[-1] == "__init__" else inside)
        found.append(Patch(module, names, code))
    return found


def _head(definition: ast.FunctionDef) -> list[str]:
    return [ast.dump(part) for part in (definition.args, *definition.decorator_list)]


def _alone(body: Sequence[ast.stmt], names: Sequence[str]) -> list[ast.stmt]:
    """The definition of the function with this name, without the other methods of its classes. They do
    not change its code, and compiling them takes time."""
    name, *inner = names
    found: list[ast.stmt] = []
    for node in body:
        if isinstance(node, _Definition) and _name(node) == name:
            if isinstance(node, ast.ClassDef) and inner:
                alone = ast.ClassDef(node.name, [], [], _alone(node.body, inner), [])
                found.append(ast.copy_location(alone, node))
            else:
                found.append(node)
    return found


def _code_of(code: CodeType, names: Sequence[str]) -> CodeType | None:
    for name in names:
        inner = [c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name]
        if len(inner) != 1:
            return None
        code = inner[0]
    return code


def apply_patch(patch: Patch) -> None:
    """Give the function its new code in this process."""
    found: Any = importlib.import_module(patch.module)
    for name in patch.names:
        found = vars(found)[name]
    if isinstance(found, property):
        found = found.fget
    while not isinstance(found, FunctionType) or hasattr(found, "__wrapped__"):
        found = found.__wrapped__
    found.__code__ = patch.code


def find(code: str, package: Path) -> Statement:
    """The statement with this definition."""
    layer, _, name = code.partition(":")
    found = [
        statement
        for path in _defining(package / layer, name.partition(".")[0])
        for statement in _statements(path).get(name, ())
    ]
    if len(found) != 1:
        raise Outdated(f"{code} is defined {len(found)} times, not once")
    return found[0]


def _defining(layer: Path, name: str) -> list[Path]:
    """The files of a layer in which a line begins with a definition of this name, or looks like it.
    The other files need not be parsed."""
    lines = [f"\n{word}{name}" for word in ("class ", "def ", "")]
    return [path for path, text in _texts(layer) if any(line in text for line in lines)]


@functools.cache
def _texts(layer: Path) -> list[tuple[Path, str]]:
    return [(path, "\n" + path.read_text()) for path in sorted(layer.rglob("*.py"))]


@functools.cache
def _statements(path: Path) -> dict[str, list[Statement]]:
    """The statements of each definition in a file, by its name."""
    statements: dict[str, list[Statement]] = {}
    for node in _parse(path).body:
        first = min(part.lineno for part in (node, *getattr(node, "decorator_list", ())))
        for name in _names(node):
            statement = Statement(path, first, node.end_lineno or first)
            statements.setdefault(name, []).append(statement)
    return statements


def _names(node: ast.stmt) -> Iterator[str]:
    """The names that this statement defines."""
    if isinstance(node, _Definition) and (name := _name(node)) is not None:
        yield name
        if isinstance(node, ast.ClassDef):
            yield from (f"{name}.{inner}" for each in node.body for inner in _names(each))


@functools.cache
def _imports(path: Path) -> list[ast.stmt]:
    """The imports of a module. They are needed because the compiler writes different code for a call of
    an imported name."""
    return [node for node in _parse(path).body if isinstance(node, ast.Import | ast.ImportFrom)]


@functools.cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _definitions(within: ast.Module | ast.ClassDef, name: str) -> list[_Definition]:
    first, _, rest = name.partition(".")
    found = [node for node in within.body if isinstance(node, _Definition) and _name(node) == first]
    if not rest:
        return found
    classes = [node for node in found if isinstance(node, ast.ClassDef)]
    return [inner for node in classes for inner in _definitions(node, rest)]


def _name(node: _Definition) -> str | None:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return name
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return None


def _replace(definition: _Definition, change: Change) -> int:
    """Replace the pattern wherever it occurs. Returns the number of occurrences."""
    old, new = ast.parse(change.old).body, ast.parse(change.new).body
    match old, new:
        case [ast.Expr(value=expression)], [ast.Expr(value=instead)]:
            replacing = _Expressions(expression, instead)
            replacing.visit(definition)
            return replacing.found
    return sum(_replace_run(body, old, new) for body in _bodies(definition))


class _Expressions(ast.NodeTransformer):
    def __init__(self, old: ast.expr, new: ast.expr) -> None:
        self._type, self._old = type(old), ast.dump(old)
        self._new = new
        self.found = 0

    def visit(self, node: ast.AST) -> ast.AST:
        if type(node) is self._type and ast.dump(node) == self._old:
            self.found += 1
            return self._new
        return self.generic_visit(node)


def _bodies(definition: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(definition):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list):
                yield body


def _replace_run(body: list[ast.stmt], old: Sequence[ast.stmt], new: Sequence[ast.stmt]) -> int:
    wanted = [ast.dump(statement) for statement in old]
    found = 0
    for at in range(len(body) - len(wanted), -1, -1):
        if [ast.dump(statement) for statement in body[at : at + len(wanted)]] == wanted:
            body[at : at + len(wanted)] = new
            found += 1
    return found
