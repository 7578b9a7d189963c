"""A live view of a run in the terminal."""

from __future__ import annotations

import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hive_frontend.search.events import Event, Progress

_IDLE = Progress(0, 0, 0, 0, None, 0, 0, 0, 0.0)
_STYLES = {"committed": "cyan", "final": "bold green", "dead": "red"}


class LiveView:
    """Shows states fired, states alive, the best score, tokens and time during a run.

        with LiveView() as view:
            result = run(my_agent, ..., model=..., on_event=view.on_event)

    One view can show several runs in turn; set `title` to tell them apart. If the output is not a terminal, the view
    prints a plain line every `every_s` seconds and one at the end of each run.
    """

    def __init__(self, title: str = "hive", *, console: Console | None = None, every_s: float = 2.0) -> None:
        self.title = title
        self._console = console or Console()
        self._every_s = every_s
        self._progress = _IDLE
        self._recent: tuple[Event, ...] = ()
        self._printed = time.monotonic()
        self._live: Live | None = None

    def __enter__(self) -> LiveView:
        if self._console.is_terminal:
            self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=8)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def on_event(self, event: Event) -> None:
        """Show an event of a run; pass this method as `on_event`."""
        self._progress = event.progress
        if event.kind in _STYLES and event.step is not None:
            self._recent = (*self._recent[-5:], event)
        if self._live is None:
            now = time.monotonic()
            if event.kind == "finished" or now - self._printed >= self._every_s:
                self._printed = now
                self._console.print(self._line(), markup=False, highlight=False, soft_wrap=True)

    def _line(self) -> str:
        facts = "  ".join(f"{name} {value}" for name, value in _facts(self._progress))
        return f"{self.title}: {facts}"

    def _render(self) -> RenderableType:
        facts = _facts(self._progress)
        table = Table.grid(padding=(0, 2), expand=True)
        for _ in facts:
            table.add_column(justify="center")
        table.add_row(*(Text(name, style="dim") for name, _ in facts))
        table.add_row(*(Text(value, style="bold") for _, value in facts))
        return Panel(Group(table, Text(), *map(_recent_line, self._recent)), title=Text(self.title))


def _facts(progress: Progress) -> list[tuple[str, str]]:
    tokens = progress.tokens_generated + progress.tokens_replayed
    share = f" ({progress.tokens_replayed / tokens:.0%})" if tokens else ""
    return [
        ("fired", str(progress.fired)),
        ("alive", str(progress.alive)),
        ("dead", str(progress.dead)),
        ("results", str(progress.results)),
        ("best score", "-" if progress.best_score is None else f"{progress.best_score:g}"),
        ("generated", str(progress.tokens_generated)),
        ("replayed", f"{progress.tokens_replayed}{share}"),
        ("elapsed", f"{progress.elapsed_s:.1f} s"),
    ]


def _recent_line(event: Event) -> Text:
    """Return one line about a transition. Text of models is shown literally, never as markup."""
    text = event.detail if event.kind != "committed" and event.detail else " | ".join(event.replies)
    # Control characters of a model's answer must not reach the terminal.
    clean = "".join(char if char.isprintable() else " " for char in text)
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{event.step:>12} ", style=_STYLES[event.kind])
    line.append(clean)
    return line
