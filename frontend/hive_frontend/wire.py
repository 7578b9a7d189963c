"""The protocol that client and server share: the tag of a request, its headers, the rule for names, derived seeds.

Uses the standard library only. It is the one module of the frontend that the server imports.

In a body the tag is `custom_params.hive`, an object. `x-hive-*` headers carry the same fields and take precedence; its
object `expects` is two headers, `x-hive-expects-event` and `x-hive-expects-seconds`. `sglang-router` drops
`custom_params` from bodies; the `x-request-id-hive-*` headers carry the same fields under names that it forwards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Literal, NotRequired, Required, TypedDict, TypeGuard, get_args

NAME_PATTERN = re.compile(r"[A-Za-z0-9._:/@-]{1,128}")
"""Names of agents, sessions, states, tenants, scopes and messages."""
NAME_RULE = "must be 1 to 128 characters of A-Z, a-z, 0-9 and ._:/@-"
MAX_SAMPLE = 2**31 - 1

Replay = Literal["stepwise", "hotspot", "distinct", "off"]
REPLAY_MODES: tuple[Replay, ...] = ("stepwise", "hotspot", "distinct", "off")

Event = Literal["tool", "human", "subagent", "end"]
"""What a session waits for after a request: a tool's result, a person's answer, a subagent, or nothing: it is over."""
EVENTS: tuple[Event, ...] = get_args(Event)
MAX_HINT_SECONDS = 604800
"""The longest time that a hint can name: a week."""
MAX_KV_PRIORITY = 100

TAG_KEY = "hive"
"""Key of the tag in `custom_params`."""
BODY_FIELD = f"custom_params.{TAG_KEY}"
HEADER_PREFIX = "x-hive-"
ROUTED_PREFIX = "x-request-id-hive-"


class Expects(TypedDict):
    """What a session waits for, and for how many seconds if known."""

    event: Event
    seconds: NotRequired[float]


class Hints(TypedDict, total=False):
    """What a client knows about the next use of a session's KV."""

    expects: Expects
    kv_priority: int
    """KV of higher priority is evicted later, all else being equal, -100 to 100. (SGLang's own `priority` orders
    requests.)"""
    retain: float
    """Seconds for which the KV should stay."""
    discard: bool
    """Whether the KV will not be used again."""


class SessionHint(Hints, total=False):
    """Hints about a session between its requests.

    With a `state`, whose only hint is `discard`, it is about the KV of the answers to this state and its parts
    (`state/...`), or of one of them, a `sample`.
    """

    session: Required[str]
    state: str
    sample: int


class Tag(Hints, total=False):
    """The identity of a request: its agent, session and state, how to replay it, and what follows it."""

    agent: str
    session: str
    state: str
    sample: int
    replay: Replay
    tenant: str
    scope: str
    hotspot_threshold: float
    hotspot_top_k: int
    hotspot_decay: float


def custom_params(tag: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `custom_params` of a body with this tag."""
    return {TAG_KEY: tag}


def is_name(value: object) -> TypeGuard[str]:
    """Return whether a server accepts `value` as a name."""
    return isinstance(value, str) and NAME_PATTERN.fullmatch(value) is not None


def check_name(kind: str, name: object) -> str:
    """Return `name` if a server accepts it as the name of a `kind` (agent, session or tenant).

    Raises:
        ValueError: if it is not a valid name.
    """
    if not is_name(name):
        raise ValueError(f"{kind} {NAME_RULE}, not {name!r}")
    return str(name)


def derive_seed(*parts: str | int) -> int:
    """Return a seed in [0, 2**63) derived from `parts`: equal parts give equal seeds, on any machine and in any run."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def sample_seed(seed: int, sample: int) -> int:
    """Return the seed, 0 .. 2**63 - 1, of the `sample`-th draw from a state whose base seed is `seed`.

    Sample 0 uses the base seed itself. A Hive server calls this function for each sample; for other servers the client
    calls it.
    """
    return derive_seed(seed, sample) if sample else seed
