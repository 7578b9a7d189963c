"""OpenTelemetry spans for agents, steps, tools and model calls.

Names and attributes are those of OpenTelemetry's semantic conventions for generative AI (`gen_ai.*`). What these have
no name for is under `hive.*`. Spans are recorded if `opentelemetry-api` is installed (`hive[otel]`) and the program has
set up a tracer provider; otherwise `span` does nothing. They hold names, numbers and ids, but never a prompt, an
answer, the argument of a tool, or the message of an error, which may quote one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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

Value = str | int | float | bool | Sequence[str] | None
Operation = Literal["invoke_agent", "execute_tool", "chat", "text_completion", "step"]
"""What a span is about: an operation of the conventions or, for `step`, of Hive."""

_TO_SERVERS = ("chat", "text_completion")


class Span:
    """A span that is open, or a stand-in that records nothing."""

    __slots__ = ("_span",)

    def __init__(self, span: Any = None) -> None:
        self._span = span

    def set(self, attributes: Mapping[str, Value]) -> None:
        """Set attributes of the span; None is left out."""
        if self._span is not None:
            self._span.set_attributes(_known(attributes))


_NOTHING = nullcontext(Span())


def active() -> bool:
    """Return whether spans are recorded. Callers skip the work for them otherwise."""
    return _otel is not None and not isinstance(_otel.get_tracer_provider(), _otel.ProxyTracerProvider)


def span(
    operation: Operation, name: str | None, attributes: Mapping[str, Value]
) -> AbstractContextManager[Span]:
    """Open a span named `"OPERATION NAME"` for the duration of the context, as a child of the current span.

    An error that leaves the context sets the span's status and its `error.type`. A branch that fails or is cancelled is
    a normal part of a search: its span gets the `error.type` but no error status.
    """
    return _span(operation, name, attributes) if active() else _NOTHING


@contextmanager
def _span(operation: Operation, name: str | None, attributes: Mapping[str, Value]) -> Iterator[Span]:
    own = {} if operation == "step" else {"gen_ai.operation.name": operation}
    with _otel.get_tracer("hive").start_as_current_span(
        operation if name is None else f"{operation} {name}",
        kind=_otel.SpanKind.CLIENT if operation in _TO_SERVERS else _otel.SpanKind.INTERNAL,
        # At creation, because samplers see only these.
        attributes={**own, **_known(attributes)},
        record_exception=False,
        set_status_on_exception=False,
    ) as otel_span:
        try:
            yield Span(otel_span)
        except BaseException as error:
            otel_span.set_attribute("error.type", type(error).__name__)
            if isinstance(error, Exception):
                otel_span.set_status(_otel.StatusCode.ERROR)
            raise


def _known(attributes: Mapping[str, Value]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


def make_current_in(context: Context) -> None:
    """Make the current span the current one in `context`, too."""
    if active():
        context.run(_otel_context.attach, _otel_context.get_current())


def headers() -> dict[str, str] | None:
    """Return `traceparent` and `tracestate` of the current span, so that the server can continue the trace.

    Baggage is not sent: it belongs to the program.
    """
    if _otel is None or _otel.get_current_span() is _otel.INVALID_SPAN:
        return None
    found: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(found)
    return found or None
