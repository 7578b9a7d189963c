"""``python -m hive.launch_server``: SGLang's server with Hive's patches.

Takes every flag of SGLang's own launcher plus the ``--hive-*`` group.  Without ``--model-path`` it serves the
embedded model; without a GPU it chooses settings for a CPU.  This is the only module of ``hive`` that uses SGLang.  It
imports it late, and Hive's flags too, so that a missing extra gives one sentence instead of a traceback.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hive.server.flags.refused_settings import refusal, segments_refusal
from hive.server.roles import UnfitAdapter, lora_flags

if TYPE_CHECKING:
    from hive.server.flags.server_args import HiveServerArgs

MODEL_FLAGS = frozenset({"--model-path", "--model", "--config"})
"""SGLang's flags that select the model; without any of them, the server serves the embedded one."""


def cpu_defaults(argv: Sequence[str]) -> list[str]:
    """Return the flags that make SGLang serve on a CPU, without those that ``argv`` sets itself."""
    defaults = {
        "--device": ["cpu"],
        "--attention-backend": ["torch_native"],
        "--cuda-graph-backend-decode": ["disabled"],
        "--cuda-graph-backend-prefill": ["disabled"],
        # By default an idle scheduler polls in a busy loop, which takes a whole core of a small machine.
        "--sleep-on-idle": [],
        # The warm-up request takes seconds on a CPU and has no use there.
        "--skip-server-warmup": [],
        # Otherwise SGLang sizes the KV pool by free memory, and takes most of the machine's.
        "--max-total-tokens": ["32768"],
        "--max-running-requests": ["64"],
    }
    if not _has_bfloat16():
        defaults["--dtype"] = ["float32"]
    given = {argument.split("=", 1)[0] for argument in argv}
    return [word for flag, values in defaults.items() if flag not in given for word in (flag, *values)]


def with_warm_up(argv: Sequence[str]) -> list[str]:
    """Add Hive's warm-up (:mod:`sglang_patches.http.warmup`) to the flags, unless they configure the warm-up."""
    given = {argument.split("=", 1)[0] for argument in argv}
    if given & {"--warmups", "--skip-server-warmup"}:
        return list(argv)
    return [*argv, "--warmups", "hive"]


def _has_bfloat16() -> bool:
    """Whether this CPU computes in bfloat16.

    Other CPUs convert each operand.  With 64 tokens, a layer of the embedded model's size then takes five times as long
    as in float32, with eight tokens three times (measured with AVX2).
    """
    import torch

    known = torch.cpu.get_capabilities()
    return any(known.get(name) for name in ("amx_bf16", "avx512_bf16", "bf16"))


def split_args(argv: Sequence[str]) -> tuple[HiveServerArgs, list[str]]:
    """Separate Hive's flags from SGLang's.

    Raises:
        SystemExit: status 2, after an error message with the flag and its rule.
    """
    from hive.server.flags.server_args import HiveServerArgs

    parser = argparse.ArgumentParser(prog="python -m hive.launch_server", add_help=False, allow_abbrev=False)
    HiveServerArgs.add_cli_args(parser)
    namespace, rest = parser.parse_known_args(list(argv))
    unknown = [word for word in rest if word.startswith("--hive-")]
    if unknown:
        parser.error(f"unknown flag {unknown[0]}; see python -m hive.launch_server --help")
    given = {word.split("=", 1)[0] for word in argv}
    if "--radix-eviction-policy" in given:
        if "--hive-eviction" not in given:
            namespace.hive_eviction = "engine"
        elif namespace.hive_eviction != "engine":
            parser.error(
                "--radix-eviction-policy and --hive-eviction both choose the policy; give only one of them"
            )
    if namespace.hive_roles and (other := given & {"--config", "--lora-paths"}):
        parser.error(
            "--hive-roles serves the adapters in the folder roles of --model-path, or the embedded model's; leave out "
            f"{', '.join(sorted(other))}"
        )
    try:
        return HiveServerArgs.from_cli_args(namespace), rest
    except ValueError as error:
        parser.error(str(error))


def model_path(argv: Sequence[str]) -> Path:
    """Return the folder of the model that the flags name."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--model-path", "--model", type=Path, required=True)
    named: Path = parser.parse_known_args(list(argv))[0].model_path
    return named


def not_recordable(file: str) -> str | None:
    """Return why traffic cannot be recorded to a file; None if it can."""
    try:
        # As the record does: a file that it makes is only its owner's to read.
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
        return None
    except OSError as error:
        return error.strerror or str(error)


def print_help() -> None:
    """Print SGLang's flags and Hive's."""
    from sglang.srt.server_args import ServerArgs

    from hive.server.flags.server_args import HiveServerArgs

    parser = argparse.ArgumentParser(
        usage="python -m hive.launch_server [FLAGS]",
        description="SGLang's server with Hive's patches. Without --model-path it serves the embedded model.",
    )
    ServerArgs.add_cli_args(parser)
    HiveServerArgs.add_cli_args(parser)
    parser.print_help()


def main(argv: Sequence[str] | None = None) -> None:
    """Start the server and serve until it is stopped.

    Raises:
        SystemExit: non-zero, after one clear message, if the server cannot start as requested.
    """
    # SGLang's imports create a million objects that live forever: scanning them takes a third of the start. The server
    # turns the collector on when it listens.
    gc.disable()
    try:
        _serve(list(sys.argv[1:] if argv is None else argv))
    finally:
        gc.enable()


def _serve(arguments: list[str]) -> None:
    if importlib.util.find_spec("sglang") is None:
        raise SystemExit("hive: SGLang is not installed. Run: uv pip install 'hive[server]'")
    hive_args, rest = split_args(arguments)
    if hive_args.record_traffic and (problem := not_recordable(hive_args.record_traffic)):
        raise SystemExit(f"hive: --hive-record-traffic cannot write to {hive_args.record_traffic}: {problem}")
    hive_args.to_environment()

    from sglang.srt.plugins import load_plugins

    load_plugins()
    if "--help" in rest or "-h" in rest:
        print_help()
        return

    from sglang_patches import cpu_platform
    from sglang_patches.contract import releases
    from sglang_patches.contract.activation import PatchError, verify

    try:
        verify()
    except PatchError as error:
        raise SystemExit(f"hive: {error}") from None

    given = {word.split("=", 1)[0] for word in rest}
    if not given & MODEL_FLAGS:
        from hive.server.embedded_model import EmbeddedModelError, ensure_embedded_model

        try:
            rest += ["--model-path", str(ensure_embedded_model())]
        except EmbeddedModelError as error:
            raise SystemExit(f"hive: {error}") from None
        if "--served-model-name" not in given:
            rest += ["--served-model-name", "smollm2-135m-instruct"]
    if hive_args.roles:
        try:
            # In front, so that the user's own LoRA flags take precedence.
            rest = [*lora_flags(cpu_platform.needed(), model_path(rest)), *rest]
        except (FileNotFoundError, UnfitAdapter) as error:
            raise SystemExit(f"hive: --hive-roles: {error}") from None
    if "--sampling-backend" not in given:
        rest += ["--sampling-backend", "hive"]
    if not cpu_platform.needed():
        rest = with_warm_up(rest)
    else:
        if "--enable-hierarchical-cache" in given:
            raise SystemExit(
                "hive: --enable-hierarchical-cache needs a GPU: SGLang registers its host pool with CUDA. "
                "Leave the flag out on this machine"
            )
        rest += cpu_defaults(rest)
        # By default, OpenMP threads spin while they wait. When other processes compete for the cores (this server
        # alone has four), a decode step then waits for time slices: 1,200 ms instead of 44 ms, measured on two cores
        # under a load of six. The scheduler processes inherit the variable before they load torch.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        # Otherwise a server that loses its scheduler waits for the GPU, and a minute for a core dump.
        os.environ.setdefault("SGLANG_CUDA_COREDUMP_BEFORE_CRASH", "0")
        os.environ.setdefault("SGLANG_PYSPY_DUMP_BEFORE_CRASH", "0")

    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    server_args = prepare_server_args(rest)
    if sentence := refusal(server_args, os.environ):
        raise SystemExit(f"hive: {sentence}")
    ranks = server_args.pp_size, server_args.dp_size, getattr(server_args, "attn_cp_size", 1)
    if hive_args.record_traffic and max(ranks) > 1:
        raise SystemExit(
            "hive: --hive-record-traffic needs --pp-size, --dp-size and --attn-cp-size 1: each rank would write a "
            "record of its own, with other hashes"
        )
    # The scheduler checks again when it knows the model.
    if hive_args.kv_segments and (reason := segments_refusal(server_args, releases.installed(), given)):
        raise SystemExit(f"hive: --hive-kv-segments cannot be used: {reason}")
    try:
        run_server(server_args)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main()
