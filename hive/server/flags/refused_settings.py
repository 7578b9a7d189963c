"""Settings of SGLang that the launcher refuses before anything starts: those that would serve requests without Hive's
checks, and those that a feature of Hive does not support."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

SEGMENTS_RELEASE = "0.5.17"
"""The release of SGLang that segments are made for; later ones admit requests, and hold their KV, in other ways."""

CHOSEN = frozenset({"--kv-cache-dtype", "--page-size", "--disable-radix-cache"})
"""Flags that SGLang also sets by itself, for some models and some kinds of attention."""


def refusal(server_args: Any, environment: Mapping[str, str]) -> str | None:
    """Return in one sentence why a server must not start with these settings; None if it may.

    Args:
        server_args: SGLang's parsed arguments.
        environment: the environment variables of the process.
    """
    reasons = (
        (
            server_args.smg_grpc_mode or getattr(server_args, "grpc_mode", False),
            "--smg-grpc-mode serves gRPC only, which bypasses the checks of requests and keys. Leave it out: Hive "
            "serves HTTP",
        ),
        (
            server_args.grpc_port is not None or "SGLANG_GRPC_PORT" in environment,
            "--grpc-port (SGLANG_GRPC_PORT) opens a second port, which bypasses the checks of requests and keys. Leave "
            "it out: Hive serves HTTP",
        ),
        (
            server_args.encoder_only,
            "--encoder-only serves no text and bypasses Hive's checks. Start it with python -m sglang.launch_server",
        ),
        (
            server_args.tokenizer_worker_num > 1,
            "--tokenizer-worker-num must be 1: SGLang starts further HTTP processes without its API keys, and Hive "
            "cannot add its checks to them. Put a router in front of several servers instead",
        ),
        (
            environment.get("DUMPER_SERVER_PORT") == "reuse",
            "DUMPER_SERVER_PORT=reuse adds a route that forwards Hive's own control messages unchecked. Give the "
            "dumper a port of its own",
        ),
        (
            environment.get("SGLANG_RUST_SERVER", "").lower() in ("1", "true", "yes", "y"),
            "SGLANG_RUST_SERVER serves HTTP in another process, which bypasses Hive's checks. Unset it",
        ),
    )
    return next((sentence for applies, sentence in reasons if applies), None)


def segments_refusal(server_args: Any, release: str, given: Collection[str] = CHOSEN) -> str | None:
    """Return in one sentence why a server with these arguments cannot have a segment store; None if it can.

    Args:
        server_args: SGLang's parsed arguments.
        release: the release of SGLang.
        given: flags of the command line.  What SGLang sets by itself counts only if it is among them: before the model
            is known, another reason against a store may apply.
    """
    if release != SEGMENTS_RELEASE:
        return f"SGLang {release} is installed, but segments need {SEGMENTS_RELEASE}"
    reasons = (
        (
            "--kv-cache-dtype" in given
            and server_args.kv_cache_dtype not in ("auto", "bfloat16", "bf16", "float32", "float16"),
            f"--kv-cache-dtype {server_args.kv_cache_dtype} quantises KV, and every move would round it again. Leave "
            "it out",
        ),
        (
            server_args.speculative_algorithm is not None,
            f"--speculative-algorithm {server_args.speculative_algorithm} keeps separate KV for drafts. Leave it out",
        ),
        (
            "--page-size" in given and (server_args.page_size or 1) != 1,
            f"--page-size {server_args.page_size} is not supported, because segments start at any token. Leave it at 1",
        ),
        (
            server_args.tp_size > 1,
            "--tp-size above 1 is not supported yet. Put a router in front of several servers",
        ),
        (
            server_args.dp_size > 1,
            "--dp-size above 1 is not supported: only one rank has a message. Put a router in front of several servers",
        ),
        (server_args.pp_size > 1, "--pp-size above 1 is not supported yet"),
        (
            server_args.disaggregation_mode != "null",
            "--disaggregation-mode is not supported: messages must be on the server that decodes",
        ),
        (
            "--disable-radix-cache" in given and server_args.disable_radix_cache,
            "--disable-radix-cache disables the cache that segments are kept in",
        ),
        (
            server_args.enable_hierarchical_cache,
            "--enable-hierarchical-cache uses another cache; --hive-kv-segments-host-bytes keeps segments on the host",
        ),
        (
            server_args.radix_cache_backend,
            f"--radix-cache-backend {server_args.radix_cache_backend} uses another cache than the one that keeps "
            "segments. Leave it out",
        ),
        (
            server_args.enable_streaming_session,
            "--enable-streaming-session keeps KV outside of the cache that keeps segments. Leave it out",
        ),
    )
    return next((sentence for applies, sentence in reasons if applies), None)
