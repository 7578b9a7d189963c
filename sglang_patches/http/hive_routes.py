"""The ``/hive`` routes of agents, sessions and statistics."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import APIRouter, HTTPException, Request, Response
from hive_frontend.wire import NAME_PATTERN
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from hive.server.access import Access
from hive.server.logits_cache.statistics import ratios
from hive.server.request_checks.hints import hints_of
from hive.server.request_tag import header_tag
from sglang_patches.http import choreography
from sglang_patches.http.arrival import now
from sglang_patches.http.chat_template import render
from sglang_patches.http.control import controller
from sglang_patches.http.request_middleware import PARSED, parsed_json
from sglang_patches.scheduling.steps import running_mean

T = TypeVar("T")


Name = Annotated[str, Field(pattern=f"^{NAME_PATTERN.pattern}$")]


class AgentRegistration(BaseModel):
    """Body of ``POST /hive/agents``."""

    model_config = ConfigDict(extra="forbid")

    name: Name
    description: str = Field(default="", max_length=1024)
    session: Name | None = None
    """The run that registers the agent. The agent counts as active from now on."""


def router(
    tokenizer_manager: Any, access: Access, messages: choreography.Choreography | None = None
) -> APIRouter:
    """Return the ``/hive`` routes for a running tokenizer manager.

    Each route works on the tenant in ``x-hive-tenant``.  Without that header, operators see all tenants, and others
    see only anonymous requests.
    """
    from sglang.srt.utils.auth import AuthLevel, auth_level

    routes = APIRouter(prefix="/hive")

    control = controller(tokenizer_manager)

    async def statistics(operation: str, request: Request) -> dict[str, Any]:
        tenant = header_tag.get().tenant
        everything = tenant is None and access.is_operator(request.headers.raw)
        return merge_ranks(await control(operation, tenant=tenant, everything=everything))

    @routes.post("/agents")
    async def register_agent(request: Request) -> dict[str, Any]:
        registration = checked(AgentRegistration.model_validate_json, await request.body())
        body = registration.model_dump(exclude_none=True)
        await control("register", tenant=header_tag.get().tenant, **body)
        return registration.model_dump()

    @routes.get("/agents")
    async def list_agents(request: Request) -> dict[str, Any]:
        return {"agents": (await statistics("agents", request))["agents"]}

    @routes.delete("/sessions/{session:path}")
    async def end_session(session: str) -> dict[str, Any]:
        checked(TypeAdapter(Name).validate_python, session)
        tenant = header_tag.get().tenant
        if messages is not None:
            await messages.end_session(tenant, session)
        parts = await control("end_session", tenant=tenant, session=session)
        counts = [part["requests"] for part in parts]
        known = [count for count in counts if count is not None]
        if not known:
            raise HTTPException(404, f"session {session!r} is unknown: it sent no request, or it has ended")
        return {"session": session, "requests": sum(known)}

    async def hint(hints: list[dict[str, Any]]) -> list[bool]:
        """Pass hints on to every rank, and return for each whether a rank knows its session."""
        tenant = header_tag.get().tenant
        if tenant is not None:
            hints = [{**hint, "tenant": tenant} for hint in hints]
        parts = await control("hint", hints=hints, now=now())
        return [any(known) for known in zip(*(part["known"] for part in parts), strict=True)]

    @routes.post("/hints")
    async def hint_sessions(request: Request) -> dict[str, Any]:
        return {"known": await hint(hints_of(parsed_json(await request.body())))}

    @routes.post("/sessions/{session:path}/hints")
    async def hint_session(session: str, request: Request) -> dict[str, Any]:
        (known,) = await hint(hints_of(parsed_json(await request.body()), session))
        return {"session": session, "known": known}

    @routes.post("/render")
    async def render_dialogue(request: Request) -> Response:
        body = request.scope[PARSED]
        chat = request.app.state.openai_serving_chat
        rendered = render(chat, body["messages"], body.get("prefix_ids") or [])
        return Response(orjson.dumps(rendered), media_type="application/json")

    @routes.get("/stats")
    async def stats(request: Request) -> dict[str, Any]:
        return {"version": version("hive"), **await statistics("stats", request)}

    async def check() -> dict[str, Any]:
        """Check the caches' accounting. Takes about one second per million states, and blocks the scheduler
        meanwhile.
        """
        parts = await control("check")
        problems = [problem for part in parts for problem in part["problems"]]
        return {"idle": all(part["idle"] for part in parts), "problems": problems}

    routes.post("/check")(auth_level(AuthLevel.ADMIN_OPTIONAL)(check))

    return routes


def checked(validate: Callable[[Any], T], data: Any) -> T:
    """Run a pydantic validator on untrusted data.

    Raises:
        HTTPException: status 400; one line names each invalid field and its rule.
    """
    try:
        return validate(data)
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, item['loc'])) or 'value'}: {item['msg']}" for item in error.errors())
        raise HTTPException(400, "; ".join(problems)) from None


def merge_ranks(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the summaries of data-parallel ranks: sum numbers, merge dicts and agents by name, recompute ratios from
    the sums.

    Scores are relative to the agents of one rank.  If several ranks know an agent, the first rank's scores are shown.
    """
    merged: dict[str, Any] = {}
    for part in parts:
        merged = _add(merged, part)
    if merged.get("logits_cache"):
        merged["logits_cache"] |= ratios(merged["logits_cache"])
    if steps := merged.get("scheduler"):
        steps["running_mean"] = running_mean(steps)
    return merged


_OF_ONE_RANK = ("contribution", "score_history")


def _add(left: Any, right: Any) -> Any:
    match left, right:
        case dict(), dict():
            both = {**left, **right}
            return {
                key: _add(left[key], right[key]) if key in left and key in right else both[key]
                for key in both
                if key not in _OF_ONE_RANK
            } | {key: left[key] or right[key] for key in _OF_ONE_RANK if key in left and key in right}
        case list(), list():
            by_name: dict[Any, Any] = {}
            for item in [*left, *right]:
                # An agent is identified by tenant and name; an entry of shared KV by two agents.
                names = ("tenant", "name", "agent", "producer_tenant", "producer")
                name = tuple(item.get(part) for part in names)
                by_name[name] = _add(by_name[name], item) if name in by_name else item
            return list(by_name.values())
        case bool(), bool():
            return left or right
        case int() | float(), int() | float():
            return left + right
        case _:
            return left
