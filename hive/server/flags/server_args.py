"""Hive's own server flags: one dataclass, one argparse group, one environment variable.

SGLang's scheduler processes are spawned, not forked: they learn Hive's settings from
:data:`ENVIRONMENT_VARIABLE`, which ``hive.launch_server`` sets before the first of them starts.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import re
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

from hive.server.agents.window import WindowSettings
from hive.server.request_tag import RequestError

ENVIRONMENT_VARIABLE = "HIVE_SERVER_ARGS"

_WHOLE_ROW = 2**31 - 1
"""More tokens than any vocabulary has."""


_ORIGIN = re.compile(r"https?://[^/?#@\s]+")
"""As browsers send them: without a path."""


def _flag(default: Any, help: str, **argparse_options: Any) -> Any:
    return field(default=default, metadata={"help": help, **argparse_options})


def parse_bytes(text: str) -> int:
    """``"512M"``, ``"2G"``, ``"1048576"`` to bytes (binary units).

    Raises:
        ValueError: when the text is no positive size.
    """
    size = parse_size(text)
    if size <= 0:
        raise ValueError(f"expected a positive size such as 512M or 2G, got {text!r}")
    return size


def parse_size(text: str) -> int:
    """The same where 0 is a size, too.

    Raises:
        ValueError: when the text is no size.
    """
    units = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    number, unit = (text[:-1], units[text[-1].upper()]) if text[-1:].upper() in units else (text, 1)
    size = int(float(number) * unit)
    if size < 0:
        raise ValueError(f"expected a size such as 512M or 2G, got {text!r}")
    return size


@dataclass(frozen=True)
class HiveServerArgs:
    """What ``python -m hive.launch_server`` takes beside SGLang's flags (``--hive-`` + the field's name)."""

    logits_cache: bool = _flag(
        True,
        "Keep the distributions that requests were sampled from and replay sampling over them when a state is "
        "asked for again (default: on).",
        action=argparse.BooleanOptionalAction,
    )
    logits_cache_bytes: int = _flag(
        2**30,
        "Host memory for the Logits Cache, e.g. 512M or 4G (default: 1G).",
        type=parse_bytes,
        metavar="BYTES",
    )
    min_free_host_bytes: int = _flag(
        2**29,
        "Free host memory below which the Logits Cache shrinks, to nothing if need be, before the kernel would have to "
        "kill a process; 0 never shrinks it (default: 512M).",
        type=parse_size,
        metavar="BYTES",
    )
    logits_cache_head: int = _flag(
        512,
        "Most likely tokens kept per distribution at the most (default: 512). Draws outside them go to the model.",
        type=int,
        metavar="TOKENS",
    )
    logits_cache_form: Literal["head", "full"] = _flag(
        "head",
        "What is kept of a distribution: 'head', the tokens that are ever drawn (about 0.5 KB), or 'full', the whole "
        "row (up to 300 KB), so that every draw can be replayed (default: head).",
        choices=("head", "full"),
    )
    replay_ahead: bool = _flag(
        False,
        "Let an idle scheduler replay the next sample of a state before it is asked for (default: off). It pays where "
        "requests come seconds apart: in a busy run on a GPU 56 hits saved 3.5 ms and cost 33 ms.",
        action=argparse.BooleanOptionalAction,
    )
    share_tenants: Literal["nothing", "kv", "everything"] = _flag(
        "nothing",
        "What tenants share: 'nothing'; 'kv', the KV of equal prompts, whose hits tell one tenant what another asked; "
        "or 'everything', the distributions of the Logits Cache as well (default: nothing). Agents, sessions and their "
        "statistics are always apart.",
        choices=("nothing", "kv", "everything"),
    )
    eviction: Literal["density", "paper", "lru", "lfu", "slru", "engine"] = _flag(
        "density",
        "Whose KV leaves the device first: 'density', what brings the fewest hits for its room; 'paper', that of the "
        "agent with the lowest contribution score; SGLang's own 'lru', 'lfu', 'slru'; or 'engine', as "
        "--radix-eviction-policy says (default: density, and engine where that flag is given).",
        choices=("density", "paper", "lru", "lfu", "slru", "engine"),
    )
    eviction_max_share: float = _flag(
        0.8,
        "Share of the resident KV above which an agent's own goes first, whatever it is worth (default: 0.8). "
        "Under 'density' alone.",
        type=float,
        metavar="SHARE",
    )
    schedule: Literal["engine", "contribution"] = _flag(
        "engine",
        "Order of the waiting queue: 'engine', as --schedule-policy says, or 'contribution', agents of higher score "
        "first (default: engine).",
        choices=("engine", "contribution"),
    )
    schedule_max_passes: int = _flag(
        64,
        "Requests that may pass one in the queue under --hive-schedule contribution before it goes first "
        "(default: 64).",
        type=int,
        metavar="N",
    )
    round_requests: int = _flag(
        16,
        "Requests in a round; contribution scores change at its end (default: 16).",
        type=int,
        metavar="N",
    )
    window_rounds: int = _flag(
        16, "Rounds that count for contribution scores (default: 16).", type=int, metavar="N"
    )
    collaborative_weight: float = _flag(
        0.6,
        "Share of what agents share with others in their contribution score; the rest is what they do themselves "
        "(default: 0.6).",
        type=float,
        metavar="WEIGHT",
    )
    max_agents: int = _flag(
        1024,
        "Agents that are told apart at a time (default: 1024). One more takes the place of one that is over, idle "
        "for a whole window and without KV on the device, unregistered ones first, whose counts go to 'other'; where "
        "none is, it is itself counted as 'other'.",
        type=int,
        metavar="N",
    )
    max_tenant_agents: int = _flag(
        256,
        "The same for each tenant (default: 256); one more takes the place of one of its own.",
        type=int,
        metavar="N",
    )
    decode_rows: Literal["auto", "on", "off"] = _flag(
        "auto",
        "Compute prefills of few tokens as rows of a decode step, together with the running batch: 'auto', where there "
        "are CUDA graphs for decode steps; 'on', everywhere; 'off', as SGLang does (default: auto).",
        choices=("auto", "on", "off"),
    )
    kv_segments: bool = _flag(
        False,
        "Keep the KV of declared segments and of messages (/hive/prefill, /hive/decode), and place it behind any "
        "context (default: off).",
        action=argparse.BooleanOptionalAction,
    )
    kv_segments_bytes: int = _flag(
        0,
        "Device memory for the KV of segments, e.g. 4G, out of the KV pool; 0 is half of the pool (default: 0).",
        type=parse_size,
        metavar="BYTES",
    )
    kv_segments_host_bytes: int = _flag(
        0,
        "Host memory for the KV of segments that left the device, e.g. 16G; 0 keeps none (default: 0).",
        type=parse_size,
        metavar="BYTES",
    )
    kv_corrector: str = _flag(
        "first-k",
        "What of placed segments is computed again where a request does not say so itself: none, first-k, blend, "
        "recompute-all, or one of them with settings as JSON (default: first-k). Calls of a choreography compute "
        "nothing again by default.",
        metavar="CORRECTOR",
    )
    kv_neutral_prefix: str = _flag(
        "You read what several people say to each other.\n\n",
        "Text behind which segments are encoded that ask for the context 'neutral'.",
        metavar="TEXT",
    )
    roles: bool = _flag(
        False,
        "Serve the role adapters of the embedded model beside it, as LoRA adapters named proposer, valuer and patcher; "
        "with --model-path those in its folder roles, named as theirs (default: off).",
        action=argparse.BooleanOptionalAction,
    )
    max_header_bytes: int = _flag(
        16384,
        "Largest accepted size of all headers of one request (default: 16384).",
        type=int,
        metavar="BYTES",
    )
    max_body_bytes: int = _flag(
        2**28,
        "Largest accepted body of a request, e.g. 64M; Hive's own routes take 64K (default: 256M).",
        type=parse_bytes,
        metavar="BYTES",
    )
    allow_origins: str = _flag(
        "",
        "Web pages that may use a server without --api-key, beside its own and those of this machine: origins as "
        "browsers send them (https://example.org), separated by commas, or * for all (default: none).",
        metavar="ORIGINS",
    )
    allow_media_files: bool = _flag(
        False,
        "Let requests name files of this machine as images, audio and video (default: off).",
        action=argparse.BooleanOptionalAction,
    )
    allow_pickle_routes: bool = _flag(
        False,
        "Serve the routes that unpickle what they are sent, and so run code of whoever may call them: "
        "/load_lora_adapter_from_tensors, /update_weights_from_tensor and /update_weights_from_ipc (default: off).",
        action=argparse.BooleanOptionalAction,
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

        for name in ("eviction_max_share", "collaborative_weight"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(
                    f"--hive-{name.replace('_', '-')} must be from 0 to 1, got {getattr(self, name)}"
                )

        try:
            self.corrector  # noqa: B018 (it is parsed to see whether it can be)
        except RequestError as error:
            raise ValueError(str(error)) from None

        for origin in self.origins - {"*", "null"}:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"--hive-allow-origins must have origins such as https://example.org or http://10.0.0.5:8080, got "
                    f"{origin!r}"
                )

    @property
    def corrector(self) -> Any:
        """The default corrector, as requests name one."""
        from hive.server.kv_segments.corrector_names import check_corrector

        spec = self.kv_corrector
        if spec.lstrip().startswith("{"):
            try:
                spec = json.loads(spec)
            except json.JSONDecodeError as error:
                raise RequestError("--hive-kv-corrector", f"must be a name or JSON: {error}") from None
        check_corrector(spec, "--hive-kv-corrector")
        return spec

    @property
    def origins(self) -> frozenset[str]:
        """Of web pages that may use a server without a key."""
        return frozenset(origin for part in self.allow_origins.split(",") if (origin := part.strip()))

    @property
    def window(self) -> WindowSettings:
        """How agents are profiled."""
        return WindowSettings(self.round_requests, self.window_rounds, self.collaborative_weight)

    @property
    def head_size(self) -> int:
        """Tokens kept per distribution at the most."""
        return _WHOLE_ROW if self.logits_cache_form == "full" else self.logits_cache_head

    @property
    def min_probability(self) -> float:
        """Least probability of a token that is kept."""
        # Needs numpy, which the plain install does not have: it must be able to say what it lacks.
        from hive.server.logits_cache.head import MIN_PROBABILITY

        return 0.0 if self.logits_cache_form == "full" else MIN_PROBABILITY

    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser) -> None:
        """Add the flags to a parser, in a group of their own."""
        group = parser.add_argument_group("Hive")
        for item in fields(cls):
            options = dict(item.metadata)
            group.add_argument(
                f"--hive-{item.name.replace('_', '-')}",
                dest=f"hive_{item.name}",
                default=item.default,
                **options,
            )

    @classmethod
    def from_cli_args(cls, namespace: argparse.Namespace) -> Self:
        """Read the flags back.

        Raises:
            ValueError: naming the flag and its rule.
        """
        return cls(**{item.name: getattr(namespace, f"hive_{item.name}") for item in fields(cls)})

    def to_environment(self) -> None:
        """Hand the settings to this process and the ones it starts."""
        os.environ[ENVIRONMENT_VARIABLE] = json.dumps(dataclasses.asdict(self))

    @classmethod
    def in_environment(cls) -> bool:
        """Whether this process was started by ``hive.launch_server``."""
        return ENVIRONMENT_VARIABLE in os.environ

    @classmethod
    def from_environment(cls) -> HiveServerArgs:
        """The settings of the server this process belongs to."""
        return _read(os.environ[ENVIRONMENT_VARIABLE])


@functools.lru_cache(maxsize=1)
def _read(text: str) -> HiveServerArgs:
    """Read and checked once per process: the scheduler asks for every prefill."""
    return HiveServerArgs(**json.loads(text))
