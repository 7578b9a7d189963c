"""Settings of SGLang that would serve requests past Hive's door: they are refused before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
