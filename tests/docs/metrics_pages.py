"""What ``docs/observability.md`` and ``docs/grafana/hive.json`` say of metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

DOCS = Path(__file__).parents[2] / "docs"


class Metric(NamedTuple):
    """A row of the table."""

    kind: str
    labels: tuple[str, ...]
    text: str


def documented() -> dict[str, Metric]:
    """The table of metrics, by name."""
    rows = re.findall(
        r"^\| `(hive_\w+)` \| (\w+) \|([^|]*)\| (.*) \|$",
        (DOCS / "observability.md").read_text(),
        re.MULTILINE,
    )
    return {
        name: Metric(kind, tuple(re.findall(r"`(\w+)`", labels)), text) for name, kind, labels, text in rows
    }


def dashboard() -> dict[str, Any]:
    """The dashboard."""
    loaded: dict[str, Any] = json.loads((DOCS / "grafana" / "hive.json").read_text())
    return loaded


def expressions() -> Iterator[str]:
    """Everything in the dashboard that asks for metrics."""
    board = dashboard()
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (item["definition"] for item in board["templating"]["list"] if item["type"] == "query")


def names_in(expression: str) -> set[str]:
    """Metrics that an expression names: all words of a query but its labels, functions and strings."""
    bare = re.sub(r'"[^"]*"|\{\{.*?\}\}', "", expression)
    return set(re.findall(r"\b[a-z]\w*_\w+\b(?=\s*(?:\{|\[|\)|,|$| ))", bare)) - {"label_values"}
