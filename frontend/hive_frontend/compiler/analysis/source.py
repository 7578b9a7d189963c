"""The source of a function: its syntax tree with the original positions, and its lines for messages."""

from __future__ import annotations

import ast
import functools
import linecache
from dataclasses import dataclass
from types import CodeType, FunctionType

from hive_frontend.errors import CompileError, Problem


@dataclass(frozen=True)
class Source:
    """The source of a function. Positions refer to the whole file, so tracebacks show the right lines."""

    filename: str
    lines: tuple[str, ...]
    node: ast.AsyncFunctionDef

    def line(self, number: int) -> str:
        """Return the text of line `number` (1-based); empty if there is no such line."""
        return self.lines[number - 1] if 0 < number <= len(self.lines) else ""

    def problem(self, node: ast.AST, what: str, fix: str) -> Problem:
        """Return a problem at the position of `node`."""
        line: int = getattr(node, "lineno", self.node.lineno)
        text = self.line(line)
        # The parser counts columns in bytes of UTF-8.
        offset: int = getattr(node, "col_offset", 0)
        column = len(text.encode()[:offset].decode(errors="ignore")) + 1
        return Problem(self.filename, line, column, text, what, fix)


@functools.lru_cache(maxsize=8)
def _parse(text: str) -> ast.Module:
    # Parse the whole file, not the dedented function, so that lines and columns are right.
    return ast.parse(text)


def read_source(function: FunctionType) -> Source:
    """Return the source of `function`.

    Raises:
        CompileError: if the source cannot be found.
    """
    code = function.__code__
    lines = tuple(linecache.getlines(code.co_filename, function.__globals__))
    if lines:
        try:
            tree = _parse("".join(lines))
        except SyntaxError:
            pass  # The file changed since it was imported.
        else:
            for node in ast.walk(tree):
                if isinstance(node, ast.AsyncFunctionDef) and _is_definition_of(node, code):
                    return Source(code.co_filename, lines, node)
    raise CompileError(
        function.__name__,
        [
            Problem(
                filename=code.co_filename,
                line=code.co_firstlineno,
                column=1,
                source=lines[code.co_firstlineno - 1] if code.co_firstlineno <= len(lines) else "",
                what="the source of the function cannot be found",
                fix="define the agent in a file or a notebook cell, with @agent as its only decorator",
            )
        ],
    )


def _is_definition_of(node: ast.AsyncFunctionDef, code: CodeType) -> bool:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return node.name == code.co_name and first == code.co_firstlineno
