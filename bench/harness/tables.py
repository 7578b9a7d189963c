"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table


def table(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: int | Sequence[str] = 1,
    sections: int = 0,
    bold: str | None = None,
    dim: str | None = None,
    caption: str | None = None,
) -> Table:
    """A table of texts.

    Args:
        left: the columns that are aligned to the left, by name, or how many of the first ones.
        sections: so many of the first columns name a section; a line separates it from the next one.
        bold: rows with this cell are printed bold.
        dim: rows with a cell that begins like this are printed dim.
    """
    names = headings[:left] if isinstance(left, int) else left
    made = Table(title=title, title_justify="left", caption=caption)
    for heading in headings:
        made.add_column(heading, justify="left" if heading in names else "right")
    previous: Sequence[str] | None = None
    for row in rows:
        if sections and previous is not None and row[:sections] != previous:
            made.add_section()
        previous = row[:sections]
        is_dim = dim is not None and any(cell.startswith(dim) for cell in row)
        made.add_row(*row, style="bold" if bold in row else "dim" if is_dim else None)
    return made


def number(value: float | None, form: str = ",.0f") -> str:
    """A value in some format; a dash for None."""
    return "-" if value is None else format(value, form)


def usage_cells(usage: Any, *, is_random: bool) -> list[str]:
    """Requests, all tokens and those replayed; random answers have none of them."""
    counts = (usage.requests, usage.tokens_generated + usage.tokens_replayed, usage.tokens_replayed)
    return ["-" if is_random else f"{count:,}" for count in counts]


def met(is_met: bool) -> str:
    """Whether a goal is met, in colour."""
    return "[green]met[/]" if is_met else "[red]missed[/]"
