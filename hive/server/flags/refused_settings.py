"""Settings of SGLang that are refused before anything starts: those that would serve requests past Hive's door, and
those that do not go with what Hive was asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

SEGMENTS_RELEASE = "0.5.17"
"""Of SGLang: later ones admit requests, and hold their KV, in other ways."""

CHOSEN = frozenset({"--kv-cache-dtype", "--page-size", "--disable-radix-cache"})
"""What SGLang also sets by itself, for some models and some kinds of attention."""


def refusal(server_args: Any, environment: Mapping[str, str]) -> str | None:
    """Why a server must not start with these arguments and this environment, in a sentence; None if it may.

    Args:
        server_args: SGLang's parsed arguments.
        environment: variables of the process.
    """
    reasons = (
        (
            server_args.smg_grpc_mode or getattr(server_args, "grpc_mode", False),
            "--smg-grpc-mode serves gRPC alone, where nothing checks requests and keys. Leave it out: Hive serves HTTP",
        ),
        (
            server_args.grpc_port is not None or "SGLANG_GRPC_PORT" in environment,
            "--grpc-port (SGLANG_GRPC_PORT) opens a second port, where nothing checks requests and keys. Leave it out: "
            "Hive serves HTTP",
        ),
        (
            server_args.encoder_only,
            "--encoder-only serves no text, and past Hive's checks. Start it with python -m sglang.launch_server",
        ),
        (
            server_args.tokenizer_worker_num > 1,
            "--tokenizer-worker-num must be 1: SGLang starts further HTTP processes without its keys, and Hive has no "
            "way into them. Put a router in front of several servers instead",
        ),
        (
            environment.get("DUMPER_SERVER_PORT") == "reuse",
            "DUMPER_SERVER_PORT=reuse adds a route that passes Hive's own control messages on unchecked. Give the "
            "dumper a port of its own",
        ),
        (
            environment.get("SGLANG_RUST_SERVER", "").lower() in ("1", "true", "yes", "y"),
            "SGLANG_RUST_SERVER serves HTTP in a process of its own, past Hive's checks. Unset it",
        ),
    )
    return next((sentence for applies, sentence in reasons if applies), None)


def segments_refusal(server_args: Any, release: str, given: Collection[str] = CHOSEN) -> str | None:
    """Why a server with these arguments cannot have a segment store, and what to do; None if it may have one.

    Args:
        server_args: SGLang's parsed arguments.
        release: of SGLang.
        given: flags of the command line.  What SGLang sets by itself counts only if it is among them: before the model
            is known, it may be for another reason that there can be no store.
    """
    if release != SEGMENTS_RELEASE:
        return f"SGLang {release} is installed, and it is made for {SEGMENTS_RELEASE}"
    reasons = (
        (
            "--kv-cache-dtype" in given
            and server_args.kv_cache_dtype not in ("auto", "bfloat16", "bf16", "float32", "float16"),
            f"--kv-cache-dtype {server_args.kv_cache_dtype} quantises KV, and every move would round it again. Leave "
            "it out",
        ),
        (
            server_args.speculative_algorithm is not None,
            f"--speculative-algorithm {server_args.speculative_algorithm} keeps KV of its own for drafts. Leave it out",
        ),
        (
            "--page-size" in given and (server_args.page_size or 1) != 1,
            f"--page-size {server_args.page_size}: segments begin at any token. Leave it at 1",
        ),
        (
            server_args.tp_size > 1,
            "--tp-size above 1 is not done yet. Put a router in front of several servers",
        ),
        (
            server_args.dp_size > 1,
            "--dp-size above 1: a message is known to one rank alone. Put a router in front of several servers",
        ),
        (server_args.pp_size > 1, "--pp-size above 1 is not done yet"),
        (
            server_args.disaggregation_mode != "null",
            "--disaggregation-mode: messages have to be where they are decoded",
        ),
        (
            "--disable-radix-cache" in given and server_args.disable_radix_cache,
            "--disable-radix-cache leaves out the cache that segments are kept beside",
        ),
        (
            server_args.enable_hierarchical_cache,
            "--enable-hierarchical-cache has another cache; --hive-kv-segments-host-bytes keeps segments on the host",
        ),
        (
            server_args.radix_cache_backend,
            f"--radix-cache-backend {server_args.radix_cache_backend} is another cache than the one that segments are "
            "kept beside. Leave it out",
        ),
        (
            server_args.enable_streaming_session,
            "--enable-streaming-session keeps KV beside the cache, where segments are not looked for. Leave it out",
        ),
    )
    return next((sentence for applies, sentence in reasons if applies), None)
