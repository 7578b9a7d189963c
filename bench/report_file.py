"""Where reports go: looked at before a run, as after an hour of it one would learn too late that there is no way."""

from __future__ import annotations

import contextlib
from pathlib import Path


def not_writable(path: Path) -> str | None:
    """Make a file's folder if there is none; what is in the way, if the file cannot be written even so."""
    new = not path.exists()
    try:
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(parents=True)
        with path.open("ab"):
            pass
    except OSError as error:
        return error.strerror or str(error)
    if new:
        path.unlink()
    return None
