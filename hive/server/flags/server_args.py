"""Hive's own server flags: one dataclass, one argparse group, one environment variable.

SGLang spawns its scheduler processes instead of forking them, so they read Hive's settings from
:data:`ENVIRONMENT_VARIABLE`, which ``hive.launch_server`` sets before the first of them starts.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, get_args, get_type_hints

from hive.server.agents.window import WindowSettings
from hive.server.eviction.policies import ENGINE_POLICIES, policies
from hive.server.eviction.retention import DEFAULT_RETAIN_SHARE
from hive.server.kv_segments.correctors import DEFAULT, corrector_of, correctors
from hive.server.logits_cache.head import MIN_PROBABILITY
from hive.server.request_tag import RequestError

ENVIRONMENT_VARIABLE = "HIVE_SERVER_ARGS"

_WHOLE_ROW = 2**31 - 1
"""More tokens than any vocabulary."""


_ORIGIN = re.compile(r"https?://[^/?#@\s]+")
"""An origin as browsers send it: without a path."""


def _flag(default: Any, help: str, **argparse_options: Any) -> Any:
    return field(default=default, metadata={"help": help, **argparse_options})


def _or(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}"


def _options(kind: Any) -> dict[str, Any]:
    """Return what a flag's type says about its argument."""
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    return {"choices": choices} if (choices := get_args(kind)) else {"type": kind}


def parse_bytes(text: str) -> int:
    """Convert ``"512M"``, ``"2G"`` or ``"1048576"`` to bytes (binary units).

    Raises:
        ValueError: if the text is not a positive size.
    """
    size = parse_size(text)
    if size <= 0:
        raise ValueError(f"expected a positive size such as 512M or 2G, got {text!r}")
    return size


def parse_size(text: str) -> int:
    """Do the same, but accept 0.

    Raises:
        ValueError: if the text is not a size.
    """
    units = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    number, unit = (text[:-1], units[text[-1].upper()]) if text[-1:].upper() in units else (text, 1)
    size = int(float(number) * unit)
    if size < 0:
        raise ValueError(f"expected a size such as 512M or 2G, got {text!r}")
    return size


@dataclass(frozen=True)
class HiveServerArgs:
    """The flags of ``python -m hive.launch_server`` besides SGLang's: ``--hive-`` and the field's name."""

    logits_cache: bool = _flag(
        True,
        "Keep the distributions that requests were sampled from, and replay sampling over them when a state is "
        "sampled again (default: on).",
    )
    logits_cache_bytes: int = _flag(
        2**30,
        "Host memory for the Logits Cache, e.g. 512M or 4G (default: 1G).",
        type=parse_bytes,
        metavar="BYTES",
    )
    min_free_host_bytes: int = _flag(
        2**29,
        "Shrink the Logits Cache, to nothing if necessary, while less host memory than this is free, so that the "
        "kernel need not kill a process; 0 never shrinks it (default: 512M).",
        type=parse_size,
        metavar="BYTES",
    )
    logits_cache_head: int = _flag(
        512,
        "Maximum number of tokens kept per distribution, the most likely first (default: 512). The model decides draws "
        "of other tokens.",
        metavar="TOKENS",
    )
    logits_cache_form: Literal["head", "full"] = _flag(
        "head",
        "How much of a distribution to keep: 'head', the tokens likely enough to be drawn (about 0.5 KB), or 'full', "
        "the whole row (up to 300 KB), with which every draw can be replayed (default: head).",
    )
    replay_ahead: bool = _flag(
        False,
        "Let an idle scheduler replay the next sample of a state ahead of its request (default: off). This pays if "
        "requests arrive seconds apart; in a busy run on a GPU, 56 hits saved 3.5 ms and cost 33 ms.",
    )
    share_tenants: Literal["nothing", "kv", "everything"] = _flag(
        "nothing",
        "What tenants share: 'nothing'; 'kv', the KV of equal prompts, at the cost that a cache hit tells one tenant "
        "what another one asked; or 'everything', the Logits Cache, too (default: nothing). Tenants never share "
        "agents, sessions or statistics.",
    )
    eviction: str = _flag(
        "density",
        f"Which KV to evict first: {''.join(f'{name!r}, {policy.about}; ' for name, policy in policies().items())}"
        f"SGLang's own {_or(map(repr, ENGINE_POLICIES))}; or 'engine', as set by --radix-eviction-policy (default: "
        "density, or engine if that flag is given).",
        choices=(*policies(), *ENGINE_POLICIES, "engine"),
    )
    retain_share: float = _flag(
        DEFAULT_RETAIN_SHARE,
        "Share of the KV pool, from 0 to 1, that clients may ask to retain, split evenly between tenants that do "
        "(default: 0.25).",
        metavar="SHARE",
    )
    schedule: Literal["engine", "contribution"] = _flag(
        "engine",
        "Order of the waiting queue: 'engine', as set by --schedule-policy, or 'contribution', agents with a higher "
        "contribution score first (default: engine).",
    )
    schedule_max_passes: int = _flag(
        64,
        "Number of later requests after which a waiting request goes first, so that none starves (default: 64). Only "
        "with --hive-schedule contribution.",
        metavar="N",
    )
    round_requests: int = _flag(
        16,
        "Requests in a round; contribution scores are updated at the end of each round (default: 16).",
        metavar="N",
    )
    window_rounds: int = _flag(
        16, "Rounds that contribution scores are computed over (default: 16).", metavar="N"
    )
    collaborative_weight: float = _flag(
        0.6,
        "Weight, from 0 to 1, of the KV that an agent shares with others in its contribution score; the rest is the "
        "weight of its own activity (default: 0.6).",
        metavar="WEIGHT",
    )
    max_agents: int = _flag(
        1024,
        "Maximum number of agents tracked at a time (default: 1024). A new agent beyond it replaces one that has ended "
        "(idle for a whole window, and without KV on the device), unregistered ones first, whose counts are added to "
        "'other'. If none has ended, the new agent is itself counted as 'other'.",
        metavar="N",
    )
    max_tenant_agents: int = _flag(
        256,
        "The same limit for each tenant (default: 256); a new agent beyond it replaces one of the same tenant.",
        metavar="N",
    )
    decode_rows: Literal["auto", "on", "off"] = _flag(
        "auto",
        "Compute prefills of a few tokens as rows of a decode step, together with the running batch: 'auto', if decode "
        "steps use CUDA graphs; 'on', always; 'off', never, as in SGLang (default: auto).",
    )
    kv_segments: bool = _flag(
        False,
        "Keep the KV of declared segments and of messages (/hive/prefill, /hive/decode), and reuse it behind any "
        "context (default: off).",
    )
    kv_segments_bytes: int = _flag(
        0,
        "Part of the KV pool on the device for segments, e.g. 4G; 0 stands for half of the pool (default: 0).",
        type=parse_size,
        metavar="BYTES",
    )
    kv_segments_host_bytes: int = _flag(
        0,
        "Host memory for the KV of segments evicted from the device, e.g. 16G; 0 keeps none (default: 0).",
        type=parse_size,
        metavar="BYTES",
    )
    kv_corrector: str = _flag(
        DEFAULT,
        f"Which tokens of reused segments to recompute if a request does not specify it: {_or(correctors())}, or JSON "
        f"with one of them as kind and its settings (default: {DEFAULT}). Calls of a choreography recompute none by "
        "default.",
        metavar="CORRECTOR",
    )
    kv_neutral_prefix: str = _flag(
        "You read what several people say to each other.\n\n",
        "The text in front of a segment when it is encoded for the context 'neutral'.",
        metavar="TEXT",
    )
    roles: bool = _flag(
        False,
        "Serve the embedded model's role adapters besides the model, as LoRA adapters named proposer, valuer and "
        "patcher. With --model-path, serve the adapters in the folder roles of that model, under their folders' names "
        "(default: off).",
    )
    record_traffic: str = _flag(
        "",
        "Append to this file when each request came and which prompts share KV, without any text, so that the traffic "
        "can be replayed (default: none).",
        metavar="FILE",
    )
    max_header_bytes: int = _flag(
        16384,
        "Maximum total size of the headers of a request (default: 16384).",
        metavar="BYTES",
    )
    max_body_bytes: int = _flag(
        2**28,
        "Maximum size of the body of a request, e.g. 64M; Hive's own routes accept 64K (default: 256M).",
        type=parse_bytes,
        metavar="BYTES",
    )
    allow_origins: str = _flag(
        "",
        "Web pages that may use a server without --api-key, besides its own and those of this machine: origins as "
        "browsers send them (https://example.org), separated by commas, or * for all (default: none).",
        metavar="ORIGINS",
    )
    allow_media_files: bool = _flag(
        False,
        "Allow requests to read files of this machine as images, audio and video (default: off).",
    )
    allow_pickle_routes: bool = _flag(
        False,
        "Serve the routes that unpickle their input, and so let anyone who can call them run code: "
        "/load_lora_adapter_from_tensors, /update_weights_from_tensor and /update_weights_from_ipc (default: off).",
    )

    def __post_init__(self) -> None:
        for name, low in (
            ("logits_cache_bytes", 1),
            ("min_free_host_bytes", 0),
            ("logits_cache_head", 1),
            ("schedule_max_passes", 1),
            ("round_requests", 1),
            ("window_rounds", 1),
            ("max_agents", 1),
            ("max_tenant_agents", 1),
            ("kv_segments_bytes", 0),
            ("kv_segments_host_bytes", 0),
            ("max_header_bytes", 1024),
            ("max_body_bytes", 1024),
        ):
            if getattr(self, name) < low:
                raise ValueError(
                    f"--hive-{name.replace('_', '-')} must be at least {low}, got {getattr(self, name)}"
                )

        for name in ("retain_share", "collaborative_weight"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(
                    f"--hive-{name.replace('_', '-')} must be from 0 to 1, got {getattr(self, name)}"
                )

        try:
            self.corrector  # noqa: B018 (validates the flag)
        except RequestError as error:
            raise ValueError(str(error)) from None

        for origin in self.origins - {"*", "null"}:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"--hive-allow-origins must list origins such as https://example.org or http://10.0.0.5:8080, got "
                    f"{origin!r}"
                )

    @property
    def corrector(self) -> Any:
        """The default corrector, in the form that requests use."""
        spec = self.kv_corrector
        if spec.lstrip().startswith("{"):
            try:
                spec = json.loads(spec)
            except json.JSONDecodeError as error:
                raise RequestError("--hive-kv-corrector", f"must be a name or JSON: {error}") from None
        corrector_of(spec, "--hive-kv-corrector")
        return spec

    @property
    def origins(self) -> frozenset[str]:
        """Origins of the web pages that may use a server without a key."""
        return frozenset(origin for part in self.allow_origins.split(",") if (origin := part.strip()))

    @property
    def window(self) -> WindowSettings:
        """Settings of the activity window."""
        return WindowSettings(self.round_requests, self.window_rounds, self.collaborative_weight)

    @property
    def head_size(self) -> int:
        """Maximum number of tokens kept per distribution."""
        return _WHOLE_ROW if self.logits_cache_form == "full" else self.logits_cache_head

    @property
    def min_probability(self) -> float:
        """Probability below which a token is not kept."""
        return 0.0 if self.logits_cache_form == "full" else MIN_PROBABILITY

    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser) -> None:
        """Add the flags to a parser, as a group."""
        group = parser.add_argument_group("Hive")
        kinds = get_type_hints(cls)
        for item in fields(cls):
            group.add_argument(
                f"--hive-{item.name.replace('_', '-')}",
                dest=f"hive_{item.name}",
                default=item.default,
                **_options(kinds[item.name]) | item.metadata,
            )

    @classmethod
    def from_cli_args(cls, namespace: argparse.Namespace) -> Self:
        """Create the settings from parsed arguments.

        Raises:
            ValueError: with the invalid flag and its rule.
        """
        return cls(**{item.name: getattr(namespace, f"hive_{item.name}") for item in fields(cls)})

    def to_environment(self) -> None:
        """Pass the settings to this process and its children."""
        os.environ[ENVIRONMENT_VARIABLE] = json.dumps(dataclasses.asdict(self))

    @classmethod
    def in_environment(cls) -> bool:
        """Whether this process was started by ``hive.launch_server``."""
        return ENVIRONMENT_VARIABLE in os.environ

    @classmethod
    def from_environment(cls) -> HiveServerArgs:
        """Return the settings of the server that this process belongs to."""
        return _read(os.environ[ENVIRONMENT_VARIABLE])


@functools.lru_cache(maxsize=1)
def _read(text: str) -> HiveServerArgs:
    """Parse the settings; cached, because the scheduler reads them at every prefill."""
    return HiveServerArgs(**json.loads(text))
