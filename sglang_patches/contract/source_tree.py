"""Find symbols and parameters in the source of a Python package without importing or installing it.

:mod:`sglang_patches.contract.check_upstream` uses this for releases of SGLang whose dependencies are not installed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_GENERATED_REPR = ast.parse("def __repr__(self): ...").body[0]
"""The method that ``@dataclass`` adds to a class without one."""


@dataclass(frozen=True)
class Definition:
    """The definition of a name."""

    module: str
    """Dotted path of the module."""
    node: ast.AST
    """A function, a class, or the statement that assigns or imports the name."""

    @property
    def parameters(self) -> tuple[str, ...] | None:
        """Names of a function's parameters, in order; None if the definition is not a function."""
        if not isinstance(self.node, ast.FunctionDef | ast.AsyncFunctionDef):
            return None
        arguments = self.node.args
        return tuple(
            argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        )


class SourceTree:
    """Source files of the packages in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names = cache(self._names_uncached)

    def find(self, path: str, seen: frozenset[str] = frozenset()) -> Definition | None:
        """Return the definition of a dotted path, following imports and base classes; None if not found.

        ``seen`` holds the paths already visited, since modules may import each other.
        """
        if path in seen:
            return None
        seen |= {path}
        parts = path.split(".")
        for end in range(len(parts), 0, -1):
            module = ".".join(parts[:end])
            if self._file(module) is not None:
                return self._walk(module, parts[end:], seen)
        return None

    def _walk(self, module: str, names: list[str], seen: frozenset[str]) -> Definition | None:
        found: Definition | None = Definition(module, ast.Module([], []))
        for depth, name in enumerate(names):
            assert found is not None
            if depth == 0:
                found = self._global(module, name, seen)
            elif isinstance(found.node, ast.ClassDef):
                found = self._attribute(found, name)
            else:
                return None
            if found is None:
                return None
        return found

    def _global(self, module: str, name: str, seen: frozenset[str]) -> Definition | None:
        names = self._names(module)
        for node in (*names.get(name, ()), *names.get("*", ())):
            if not isinstance(node, ast.ImportFrom):
                return Definition(module, node)
            original = next(
                (alias.name for alias in node.names if (alias.asname or alias.name) == name), name
            )
            found = self.find(f"{self._source_of(module, node)}.{original}", seen)
            if found is not None:
                return found
        return None

    def _attribute(self, owner: Definition, name: str) -> Definition | None:
        assert isinstance(owner.node, ast.ClassDef)
        for node in _names_of(owner.node.body).get(name, ()):
            return Definition(owner.module, node)
        if name == "__repr__" and any("dataclass" in ast.unparse(made) for made in owner.node.decorator_list):
            return Definition(owner.module, _GENERATED_REPR)
        for base in owner.node.bases:
            inherited = self.find(f"{owner.module}.{ast.unparse(base)}")
            if inherited is not None and isinstance(inherited.node, ast.ClassDef):
                found = self._attribute(inherited, name)
                if found is not None:
                    return found
        return None

    def _names_uncached(self, module: str) -> dict[str, list[ast.AST]]:
        file = self._file(module)
        assert file is not None
        if file.is_dir():  # a namespace package
            return {}
        return _names_of(ast.parse(file.read_text(encoding="utf-8")).body)

    def _source_of(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = module.split(".")
        file = self._file(module)
        assert file is not None
        up = node.level - (file.name == "__init__.py")
        return ".".join([*package[: len(package) - up], *([node.module] if node.module else [])])

    def _file(self, module: str) -> Path | None:
        path = self._folder.joinpath(*module.split("."))
        candidates = (path / "__init__.py", path.with_name(path.name + ".py"))
        return next((file for file in candidates if file.is_file()), path if path.is_dir() else None)


def _names_of(body: Iterable[ast.stmt]) -> dict[str, list[ast.AST]]:
    """Return the names that the statements of a module or class define; a name may have one definition per platform."""
    names: dict[str, list[ast.AST]] = {}
    for statement in body:
        for name, node in _defined(statement):
            names.setdefault(name, []).append(node)
    return names


def _defined(statement: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield statement.name, statement
        case ast.Import() | ast.ImportFrom():
            for alias in statement.names:
                yield alias.asname or alias.name, statement
        case ast.Assign():
            for target in statement.targets:
                yield from ((node.id, statement) for node in ast.walk(target) if isinstance(node, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name, statement
        case ast.If() | ast.Try() | ast.With():
            for inner in ast.iter_child_nodes(statement):
                if isinstance(inner, ast.stmt):
                    yield from _defined(inner)
                elif isinstance(inner, ast.ExceptHandler):
                    for handled in inner.body:
                        yield from _defined(handled)
