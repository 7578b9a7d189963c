"""The demo behind ``scripts/demo``: the embedded model, a patched SGLang, and Game of 24 by Tree of Thoughts.

Starts a server on a free loopback port (or uses ``--url``), runs ``examples.game24`` against it, and stops the
server again whatever happens.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hive.embedded_model import EmbeddedModelError, ensure_embedded_model
from hive.server_process import ServerDied, ServerProcess

console = Console()


def demo(
    puzzles: Annotated[int | None, typer.Option(min=1, help="How many puzzles to play.")] = None,
    json: Annotated[Path | None, typer.Option(help="Also write the summary to this file.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Serve this model folder instead of the embedded one.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Use this running server instead of starting one.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the search tree, the summary and the log.")] = Path(
        "out/demo"
    ),
    seed: Annotated[int | None, typer.Option(help="Seed of the search.")] = None,
) -> None:
    """Play Game of 24 with Tree of Thoughts on a patched SGLang."""
    if url is not None and model is not None:
        raise typer.BadParameter("a running server has its model already", param_hint="--model with --url")
    out.mkdir(parents=True, exist_ok=True)
    program = [sys.executable, "-m", "examples.game24", "--out", str(out)]
    for flag, value in (("--puzzles", puzzles), ("--json", json), ("--seed", seed)):
        if value is not None:
            program += [flag, str(value)]
    if url is not None:
        raise typer.Exit(subprocess.call([*program, "--url", url]))

    # SIGTERM must stop the server, too: as an exception it takes the way of Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    server: ServerProcess | None = None
    try:
        folder = model or _embedded_model()
        server = ServerProcess(["--model-path", folder], out / "server.log")
        _wait(server)
        status = subprocess.call([*program, "--url", server.url])
    except (EmbeddedModelError, ServerDied) as error:
        console.print(f"[red]demo:[/] {error}", highlight=False)
        status = 1
    finally:
        if server is not None:
            server.stop()
            console.print("Server stopped.")
    raise typer.Exit(status)


def _embedded_model() -> str:
    """The embedded model's folder, converted now if this is the first time."""
    columns = (
        TextColumn("Embedded model"),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("looking", total=1.0)
        folder = ensure_embedded_model(
            lambda doing, share: bar.update(task, description=doing, completed=share)
        )
        bar.update(task, description="ready", completed=1.0)
    return str(folder)


def _wait(server: ServerProcess) -> None:
    with console.status("Starting the server") as status:
        server.wait(
            waiting=lambda waited: status.update(
                f"Starting the server: {waited:.0f} s (about 50 s on two cores; log in {server.log_path})"
            )
        )
    console.print(f"Server ready at {server.url}")


if __name__ == "__main__":
    typer.run(demo)
