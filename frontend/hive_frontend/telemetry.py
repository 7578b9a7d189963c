"""Spans of OpenTelemetry for what a program does: runs, searches, steps and model requests.

Spans are made where `opentelemetry-api` is installed (`hive[otel]`) and the program has set up a tracer provider;
otherwise `span` does nothing. They hold names, numbers and identities, and never a prompt, an answer, or an error's
words, which may quote one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import Context
from typing import Any, Literal

_otel: Any
_otel_context: Any
try:
    from opentelemetry import context as _otel_context
    from opentelemetry import trace as _otel
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    _otel = _otel_context = None

Value = str | int | float | bool | None


class Span:
    """What is under way."""

    __slots__ = ("_span",)

    def __init__(self, span: Any = None) -> None:
        self._span = span

    def note(self, **attributes: Value) -> None:
        """Add what is known by now, under `hive.` and the given names; None is left out."""
        if self._span is not None:
            for name, value in attributes.items():
                if value is not None:
                    self._span.set_attribute(f"hive.{name}", value)


_NOTHING = nullcontext(Span())


def active() -> bool:
    """Whether spans go anywhere: nobody pays for them otherwise."""
    return _otel is not None and not isinstance(_otel.get_tracer_provider(), _otel.ProxyTracerProvider)


def span(
    kind: Literal["run", "search", "step", "request"], name: str, **attributes: Value
) -> AbstractContextManager[Span]:
    """A span `"KIND NAME"` for as long as the context lasts, under the one that is current.

    An error that leaves the context becomes the span's status, by the name of its type. A branch that fails, or that
    is given up, is part of a search: its span has the name of the type, and no status.
    """
    return _span(kind, name, attributes) if active() else _NOTHING


@contextmanager
def _span(kind: str, name: str, attributes: Mapping[str, Value]) -> Iterator[Span]:
    tracer = _otel.get_tracer("hive")
    asks = _otel.SpanKind.CLIENT if kind == "request" else _otel.SpanKind.INTERNAL
    with tracer.start_as_current_span(
        f"{kind} {name}", kind=asks, record_exception=False, set_status_on_exception=False
    ) as made:
        opened = Span(made)
        opened.note(**attributes)
        try:
            yield opened
        except BaseException as error:
            made.set_attribute("error.type", type(error).__name__)
            if isinstance(error, Exception):
                made.set_status(_otel.StatusCode.ERROR)
            raise


def hand_over(context: Context) -> None:
    """Make the span that is current the current one in `context`, too."""
    if active():
        context.run(_otel_context.attach, _otel_context.get_current())


def headers() -> dict[str, str] | None:
    """`traceparent` and `tracestate` of the span that is current, for a server that goes on with the trace.

    Nothing else is sent along: baggage is the program's own.
    """
    if _otel is None or _otel.get_current_span() is _otel.INVALID_SPAN:
        return None
    found: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(found)
    return found or None
