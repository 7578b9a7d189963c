"""Tools that a model may call: what it is told about them, and how its arguments are checked."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, get_args, get_type_hints
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from hive_frontend.client.json_text import parsed
from hive_frontend.client.structured import problems_of

ToolFormat = Literal["auto", "native", "grammar"]
"""How a model calls tools: in its own format, as the server parses it, or in JSON that a grammar makes it write."""

WaitsFor = Literal["tool", "human"]
"""What a tool waits for, as a hint for servers."""

FINAL_ANSWER: Final = "final_answer"
"""The tool by which a model gives a typed answer."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CHOICES: Final = ("auto", "required", "none")


class ToolSchema(NamedTuple):
    """What a model is told about a tool."""

    name: str
    description: str
    parameters: str
    """The JSON schema of the arguments, as text."""


class Tools(NamedTuple):
    """The tools that a model may call in one answer."""

    schemas: tuple[ToolSchema, ...]
    choice: str = "auto"
    """`auto`: it may call tools; `required`: it must; `none`: it must not; or the name of the one that it must call."""
    parallel: bool = True
    """Whether one answer may call several tools."""
    format: ToolFormat = "auto"


class BadArguments(ValueError):
    """A model called a tool with invalid arguments."""


class ModelTool:
    """A function that a model may call, with settings: `act(task, tools=[ModelTool(search, timeout=20), look_up])`.

    The model sees the function's name, its docstring, and its parameters with their types, defaults and descriptions
    (`Annotated[int, Field(description="...")]`). `name`, `description` and `parameters`, a JSON schema, replace them.
    Parameters that `functools.partial` has bound are not shown. `timeout`, `rerun` and `waits_for` are those of `tool`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        rerun: bool = False,
        waits_for: WaitsFor = "tool",
    ) -> None:
        if not callable(function):
            raise TypeError(f"tools must be functions or ModelTool(function, ...), not {function!r}")
        check_tool_settings(timeout, waits_for)
        definition = _definition(function)
        found = name or str(getattr(definition, "__name__", type(definition).__name__))
        if not _NAME.fullmatch(found) or found in _CHOICES:
            raise ValueError(
                f"{found!r} cannot be the name of a tool: use 1 to 64 letters, digits and the characters _ -, and "
                f"neither of {', '.join(_CHOICES)}; give another one with ModelTool(function, name=...)"
            )
        self.function = function
        self.timeout = timeout
        self.rerun = rerun
        self.waits_for: WaitsFor = waits_for
        self.is_checked = parameters is None
        """Whether arguments are checked by the function's signature, rather than not at all."""
        if description is None:
            description = inspect.getdoc(definition) or ""
        if parameters is None:
            parameters = _parameters(found, function).model_json_schema(schema_generator=_WithoutTitles)
            # What it says is the tool's name and description once more.
            parameters = {
                key: value for key, value in parameters.items() if key not in ("title", "description")
            }
        self.schema = ToolSchema(found, description, json.dumps(parameters))

    @property
    def name(self) -> str:
        """The name by which the model calls it."""
        return self.schema.name

    def arguments(self, text: str) -> dict[str, Any]:
        """Return the keyword arguments that a model wrote as JSON; `BadArguments` if they are invalid."""
        if not self.is_checked:
            found = parsed((text or "{}").encode())
            if not isinstance(found, dict):
                raise BadArguments("the arguments are not a JSON object")
            return found
        try:
            model = _parameters(self.name, self.function).model_validate_json(text or "{}")
        except ValidationError as error:
            raise BadArguments(problems_of(error, "the arguments")) from None
        names = {field: str(info.alias) for field, info in type(model).model_fields.items()}
        return {names[field]: getattr(model, field) for field in names if field in model.model_fields_set}

    def __repr__(self) -> str:
        return f"ModelTool({self.name})"


def check_tool_settings(timeout: float | None, waits_for: str) -> None:
    """Raise `ValueError` unless both are valid."""
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout must be a positive number of seconds, not {timeout!r}")
    if waits_for not in get_args(WaitsFor):
        raise ValueError(f'waits_for must be "tool" or "human", not {waits_for!r}')


ToolList = Sequence[Callable[..., Any] | ModelTool]
"""What `tools=` takes."""


def model_tools(tools: ToolList) -> list[ModelTool]:
    """Return `tools` as `ModelTool`s; raise `ValueError` if two have the same name."""
    if not isinstance(tools, (list, tuple)):
        raise TypeError(f"tools must be a list of functions, not {tools!r}")
    found = [each if isinstance(each, ModelTool) else ModelTool(each) for each in tools]
    names = [each.name for each in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"several tools are called {' and '.join(map(repr, twice))}: name one with ModelTool(function, name=...)"
        )
    return found


def checked_choice(choice: str, names: Sequence[str]) -> str:
    """Return `choice` if it is valid for tools with these names; raise `ValueError` otherwise."""
    if choice not in (*_CHOICES, *names):
        raise ValueError(
            f"tool_choice must be {', '.join(map(repr, _CHOICES))} or the name of a tool ({', '.join(names)}), not "
            f"{choice!r}"
        )
    if choice == "required" and not names:
        raise ValueError("tool_choice='required' needs at least one tool")
    return choice


class _WithoutTitles(GenerateJsonSchema):
    """Leaves out titles, which only repeat the names of the parameters."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


_known: WeakKeyDictionary[Any, dict[frozenset[str], type[BaseModel]]] = WeakKeyDictionary()
"""The models of functions' parameters, by the names of those that are not bound."""


def _definition(function: Any) -> Any:
    """Return the function or object that has the name and the docstring of a callable."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.unwrap(function)


def _parameters(name: str, function: Callable[..., Any]) -> type[BaseModel]:
    """Return the model of the parameters of a function. Their names are aliases, since pydantic does not allow all."""
    definition = _definition(function)
    definition = getattr(definition, "__func__", definition)
    bound = frozenset(function.keywords) if isinstance(function, functools.partial) else frozenset()
    parameters = {
        each.name: each for each in inspect.signature(function).parameters.values() if each.name not in bound
    }
    key = frozenset(parameters)
    try:
        known = _known.setdefault(definition, {})
    except TypeError:  # Not every object can be referred to weakly.
        known = {}
    if key not in known:
        known[key] = _model(name, definition, parameters)
    return known[key]


def _model(name: str, definition: Any, parameters: Mapping[str, inspect.Parameter]) -> type[BaseModel]:
    is_plain = inspect.isroutine(definition)
    try:
        hints = get_type_hints(definition if is_plain else type(definition).__call__, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"tool {name}: the type of a parameter is not known where the function is defined ({error}); define that "
            "type at module level"
        ) from None
    fields: dict[str, Any] = {}
    for number, each in enumerate(parameters.values()):
        if each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
            raise TypeError(
                f"tool {name}: a model gives arguments by name, and cannot give {_plain(each)}; replace it by named "
                "parameters, or pass ModelTool(function, parameters=...)"
            )
        default = ... if each.default is each.empty else each.default
        fields[f"p{number}"] = (hints.get(each.name, Any), Field(default=default, alias=each.name))
    try:
        return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    except PydanticSchemaGenerationError as error:
        raise TypeError(
            f"tool {name}: a model cannot write an argument of every type ({_first_line(error)}); bind the parameter, "
            f"as in functools.partial({name}, ...), or pass a method or a nested function"
        ) from None


def _plain(parameter: inspect.Parameter) -> str:
    return str(parameter.replace(annotation=parameter.empty))


def _first_line(error: PydanticUserError) -> str:
    return error.message.splitlines()[0].split(". ")[0]
