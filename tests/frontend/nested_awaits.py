"""Programs whose awaits stand inside each other, and what is to be said of their states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

NAMES = ("patch", "draft", "tests")
_AGENTS = (None, None, "critic")


@dataclass(frozen=True)
class Wait:
    """What one `await` waits for."""

    name: str | None
    """The name that its own call gives the state; None for one that is called after its line."""
    agent: str | None = None
    tools: int = 0
    """How many tools it calls."""


@dataclass(frozen=True)
class Written:
    """An expression, and the waits in it in the order in which they happen."""

    text: str
    waits: tuple[Wait, ...] = ()


@dataclass(frozen=True)
class NestedAwaits:
    """A program, and its states in the order in which it reaches them."""

    source: str
    waits: tuple[Wait, ...]


class _Writer:
    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def _pick(self, options: Sequence[str | None]) -> str | None:
        return self._draw(st.sampled_from(options))

    def awaited(self, depth: int) -> Written:
        match self._pick(["gen", "tool", "tool", "choose", "gather"]):
            case "gather":
                call = self._gather(depth)
            case "choose":
                first, second = self._inner(depth), self._inner(depth)
                name = self._name()
                text = f"choose([{first.text}, {second.text}]{_keyword('name', name)})"
                call = Written(text, (*first.waits, *second.waits, Wait(name)))
            case kind:
                call = self._part(kind == "gen", depth)
        return replace(call, text=f"await {call.text}")

    def _part(self, asks: bool, depth: int) -> Written:
        """A call of a model or of a tool, as it is awaited or given to `gather`; its own wait is the last."""
        inner, name = self._inner(depth), self._name()
        if asks:
            agent = self._pick(_AGENTS)
            keywords = _keyword("name", name) + _keyword("agent", agent)
            return Written(f"gen({inner.text}{keywords})", (*inner.waits, Wait(name, agent)))
        more, function = self._inner(depth), self._pick(["note", "measure"])
        text = f"tool({function}, {inner.text}, more={more.text}{_keyword('name', name)})"
        return Written(text, (*inner.waits, *more.waits, Wait(name or function, tools=1)))

    def _gather(self, depth: int) -> Written:
        asks = self._draw(st.lists(st.booleans(), min_size=1, max_size=2))
        parts = [self._part(each, depth) for each in asks]
        own = [part.waits[-1] for part in parts]
        models = [wait for wait, each in zip(own, asks, strict=True) if each]
        name = self._name()
        wait = Wait(
            name or _shared([each.name for each in models]),
            _shared([each.agent for each in models]),
            sum(each.tools for each in own),
        )
        text = f"gather({', '.join(part.text for part in parts)}{_keyword('name', name)})"
        return Written(text, (*(each for part in parts for each in part.waits[:-1]), wait))

    def _inner(self, depth: int) -> Written:
        """A text that a call is given."""
        if not depth or self._pick(["text", "await", "await"]) == "text":
            return Written("'text'")
        inner = self.awaited(depth - 1)
        form = self._pick(["str({})", "'so: ' + str({})", "str([{}])", "(lambda x: str(x))({})"])
        assert form is not None
        return replace(inner, text=form.format(inner.text))

    def _name(self) -> str | None:
        return self._pick([None, *NAMES])


def _keyword(keyword: str, value: str | None) -> str:
    return "" if value is None else f", {keyword}={value!r}"


def _shared(labels: Sequence[str | None]) -> str | None:
    """The only one of the labels that are given."""
    given = {label for label in labels if label is not None}
    return given.pop() if len(given) == 1 else None


@st.composite
def nested_awaits(draw: st.DrawFn) -> NestedAwaits:
    """An `async def program()` of one or two lines with awaits inside awaits."""
    writer = _Writer(draw)
    lines, waits = ["async def program():"], list[Wait]()
    for number in range(2, 2 + draw(st.integers(1, 2))):
        written = writer.awaited(2)
        lines.append(f"    {written.text}")
        waits += [
            replace(wait, name=wait.name or f"L{number}" + (f".{count}" if count > 1 else ""))
            for count, wait in enumerate(written.waits, 1)
        ]
    return NestedAwaits("\n".join(lines) + "\n", tuple(waits))
