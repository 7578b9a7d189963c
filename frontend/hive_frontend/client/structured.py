"""Typed answers: the JSON schema that constrains an answer, and the answer parsed as an instance of the type.

    class Step(BaseModel):
        tool: Literal["search", "edit"]
        goal: str = Field(max_length=80)
        lines: list[int] = Field(max_length=4)

    step = parse_as(Step, await gen("What next?", json_schema=schema_of(Step), max_tokens=120))

Any type that `pydantic.TypeAdapter` accepts works: models, dataclasses, typed dicts, `list[int]`, `Literal`, enums.
Bound strings, lists and integers (`max_length`, `le`): without bounds a model sometimes writes on until `max_tokens`
cuts it off. Grammars enforce most of a schema, but not all: bounds of floats, `multiple_of` and validators are only
checked when the answer is parsed, which then raises `InvalidAnswer`.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Annotated, Any, TypeVar, get_origin, overload

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from hive_frontend.errors import ModelError

T = TypeVar("T")

_MAX_PROBLEMS = 5
_MAX_SHOWN = 500


class InvalidAnswer(ModelError):
    """A model's answer violates its schema, regex or choices; `text` is the whole answer."""

    def __init__(self, message: str, *, text: str) -> None:
        super().__init__(message)
        self.text = text


def schema_of(model: Any) -> str:
    """Return the JSON schema of a type, as text for `gen(json_schema=...)`.

    Fields keep the order of the type, and the model writes them in this order: put reasons before verdicts.
    `TypeError` for a type that has no JSON schema.
    """
    try:
        return _schema_of(model)
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        return _schema_of.__wrapped__(model)


@overload
def parse_as(model: type[T], text: str, finish_reason: str | None = None) -> T: ...
@overload
def parse_as(model: Any, text: str, finish_reason: str | None = None) -> Any: ...
def parse_as(model: Any, text: str, finish_reason: str | None = None) -> Any:
    """Parse `text` as an instance of the type; `InvalidAnswer` lists the problems if that fails.

    `finish_reason` is why the model stopped; it can be omitted for a `Reply`, which has its own.
    """
    try:
        return adapter_of(model).validate_json(text)
    except ValidationError as error:
        reason = finish_reason or getattr(text, "finish_reason", None)
        raise InvalidAnswer(_explain(model, text, reason, error), text=text) from None


def _explain(model: Any, text: str, finish_reason: str | None, error: ValidationError) -> str:
    shown = repr(str(text) if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}...")
    if finish_reason == "length":
        return (
            f"the answer was cut off at max_tokens before it was a complete {_name(model)}: raise max_tokens, or bound "
            f"the strings and lists of the type (max_length); the answer was {shown}"
        )
    problems = problems_of(error, "the whole answer")
    return f"the answer is not a valid {_name(model)}: {problems}; the answer was {shown}"


def problems_of(error: ValidationError, whole: str) -> str:
    """Describe the problems of a value; `whole` names the value itself."""
    problems = [f"{'.'.join(map(str, item['loc'])) or whole}: {item['msg']}" for item in error.errors()]
    if len(problems) > _MAX_PROBLEMS:
        problems[_MAX_PROBLEMS:] = [f"and {len(problems) - _MAX_PROBLEMS} more"]
    return "; ".join(problems)


def _name(model: Any) -> str:
    if get_origin(model) is Annotated:
        return _name(model.__origin__)
    return model.__name__ if isinstance(model, type) else str(model)


@lru_cache(maxsize=256)
def _schema_of(model: Any) -> str:
    try:
        return json.dumps(adapter_of(model).json_schema())
    except PydanticUserError as error:
        raise _no_schema(model, error) from None


def adapter_of(model: Any) -> TypeAdapter[Any]:
    """Return the pydantic adapter of a type; `TypeError` for a type that pydantic does not support."""
    try:
        return _cached_adapter(model)
    except TypeError as error:
        # The metadata of an Annotated type may be unhashable.
        if "unhashable" not in str(error):
            raise
        return _cached_adapter.__wrapped__(model)


@lru_cache(maxsize=256)
def _cached_adapter(model: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(model)
    except PydanticSchemaGenerationError as error:
        raise _no_schema(model, error) from None


def _no_schema(model: Any, error: PydanticUserError) -> TypeError:
    reason = error.message.splitlines()[0].split(". ")[0]
    return TypeError(
        f"an answer cannot be parsed as {_name(model)}, which has no JSON schema ({reason}); use a pydantic model, "
        "a dataclass, a typed dict, or a type built of str, int, float, bool, list, dict, Literal and enums"
    )
