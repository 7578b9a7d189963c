"""What both sides of the wire spell: the tag of a request, its headers, the rule for names, and how seeds derive.

Standard library only, and the one module of the frontend that the server imports.

In a body the tag is `custom_params.hive`, a flat object of scalars; `x-hive-*` headers mirror it and win.
`x-request-id-hive-*` are the same headers under names that `sglang-router` forwards, which drops the tag of bodies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Literal, TypedDict, TypeGuard

NAME_PATTERN = re.compile(r"[A-Za-z0-9._:/@-]{1,128}")
"""Names of agents, sessions, states, tenants, scopes and messages."""
NAME_RULE = "must be 1 to 128 characters of A-Z, a-z, 0-9 and ._:/@-"
MAX_SAMPLE = 2**31 - 1

Replay = Literal["stepwise", "hotspot", "distinct", "off"]
REPLAY_MODES: tuple[Replay, ...] = ("stepwise", "hotspot", "distinct", "off")

TAG_KEY = "hive"
"""Key of the tag in `custom_params`."""
BODY_FIELD = f"custom_params.{TAG_KEY}"
HEADER_PREFIX = "x-hive-"
ROUTED_PREFIX = "x-request-id-hive-"


class Tag(TypedDict, total=False):
    """Who sends a request, and for which state."""

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
    """The `custom_params` of a body with this tag."""
    return {TAG_KEY: tag}


def is_name(value: object) -> TypeGuard[str]:
    """Whether a server accepts `value` as a name."""
    return isinstance(value, str) and NAME_PATTERN.fullmatch(value) is not None


def check_name(kind: str, name: object) -> str:
    """`name` if a server accepts it as that of an agent, session or tenant; `ValueError` otherwise."""
    if not is_name(name):
        raise ValueError(f"{kind} {NAME_RULE}, not {name!r}")
    return str(name)


def derive_seed(*parts: str | int) -> int:
    """A seed in [0, 2**63) from what names a request: equal parts give equal seeds, everywhere and in every run."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def sample_seed(seed: int, sample: int) -> int:
    """The seed, 0 .. 2**63 - 1, of the `sample`-th draw from a state whose base seed is `seed`.

    Sample 0 has the base seed itself. A Hive server numbers samples by this function; for servers that do not, the
    client calls it.
    """
    return derive_seed(seed, sample) if sample else seed
