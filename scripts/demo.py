"""The demo behind ``scripts/demo``: the embedded model, a patched SGLang, and Game of 24 by Tree of Thoughts.

Starts a server on a free loopback port (or uses ``--url``), runs ``examples.game24`` against it, and stops the
server again whatever happens. The embedded model plays with its roles, on puzzles that they were never taught; other
models play as they are, on the easiest ones.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from examples.game24.puzzles import TEST_SET
from hive.server.embedded_model import EmbeddedModelError, ensure_embedded_model
from hive.server.server_process import ServerDied, ServerProcess

console = Console()


def demo(
    puzzles: Annotated[int | None, typer.Option(min=1, help="How many puzzles to play.")] = None,
    json: Annotated[Path | None, typer.Option(help="Also write the summary to this file.")] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            exists=True, file_okay=False, help="Serve the model in this folder instead of the embedded one."
        ),
    ] = None,
    url: Annotated[str | None, typer.Option(help="Use this running server instead of starting one.")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="HIVE_API_KEY", help="The API key of the server at --url.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Same seed, same search.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for search trees, summary and the server's log.")] = Path(
        "out/demo"
    ),
) -> None:
    """Play Game of 24 with Tree of Thoughts on a patched SGLang."""
    if url is not None and model is not None:
        raise typer.BadParameter("a running server has its model already", param_hint="--model with --url")
    # SIGTERM must stop the server, too: as an exception it takes the way of Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    out.mkdir(parents=True, exist_ok=True)
    program = [sys.executable, "-m", "examples.game24", "--out", str(out)]
    for flag, value in (("--puzzles", puzzles), ("--json", json), ("--seed", seed)):
        if value is not None:
            program += [flag, str(value)]
    try:
        if url is not None:
            # In the environment, because every user of the machine can read a command line.
            key = {} if api_key is None else {"HIVE_API_KEY": api_key}
            status = subprocess.call([*program, "--url", url], env={**os.environ, **key})
        else:
            status = _with_own_server(program, model, out / "server.log")
    except (EmbeddedModelError, ServerDied) as error:
        console.print("demo:", style="red", end=" ")
        console.print(str(error), markup=False, highlight=False, soft_wrap=True)
        status = 1
    except KeyboardInterrupt:
        status = 130
    raise typer.Exit(status)


def _with_own_server(program: list[str], model: Path | None, log_path: Path) -> int:
    """Run the program against a server that lives as long as it does; returns the program's exit status."""
    if model is None:
        ensure_embedded_model()  # here, where its progress is seen
        flags = ["--hive-roles"]
        program = [*program, "--roles", "--first", str(TEST_SET.start)]
    else:
        flags = ["--model-path", str(model)]
    server = ServerProcess(flags, log_path)
    try:
        console.print(f"Server starting; its log: {log_path}", highlight=False, soft_wrap=True)
        with console.status("") as status:
            server.wait(
                waiting=lambda waited: status.update(
                    f"Waiting until the server has generated a token: {waited:.0f} s (about 50 s on two cores)"
                )
            )
        console.print(f"Server ready at {server.url}", highlight=False)
        return subprocess.call([*program, "--url", server.url])
    finally:
        with console.status("Stopping the server"):
            server.stop()
        console.print("Server stopped.")


if __name__ == "__main__":
    typer.run(demo)
