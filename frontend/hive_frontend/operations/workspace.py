"""Workspaces: directories that fork with the agent that edits them."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

_FICLONE = 0x40049409
"""The ioctl of Linux that makes a file share the blocks of another until one of them is written."""


class Workspace:
    """A directory of which every branch of a search has its own.

        ws = Workspace("designs/fifo")                  # a copy of it
        ws.write("fifo.v", patched)
        log = await tool(simulate, ws)                  # a function that uses ws.path

    When a state forks, the directory is copied: as reflinks where the file system knows them, so that files
    cost nothing until they change, and else byte by byte. `hard_links=True` links files instead of copying
    them, which is cheap everywhere and right only if files are replaced, never changed in place: `write`
    does that, and so do most editors and compilers, but not `open(path, "a")`.

    The directory lies in the system's folder for temporary files and is deleted with its last reference;
    `save` copies it to where it stays.
    """

    def __init__(self, source: str | os.PathLike[str] | None = None, *, hard_links: bool = False) -> None:
        self._hard_links = hard_links
        self._adopt()
        if source is not None:
            if not Path(source).is_dir():
                raise NotADirectoryError(
                    f"a workspace is made of a directory, which {os.fspath(source)!r} is not"
                )
            # The source is not the workspace's own, and may be changed in place by others.
            _copy_tree(Path(source), self.path, hard_links=False)

    def _adopt(self) -> None:
        directory = tempfile.mkdtemp(prefix="hive-workspace-")
        self.path: Path = Path(directory)
        """The directory. Another one after each fork: take it from here whenever it is used."""
        weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)

    def read(self, name: str) -> str:
        """The text of a file."""
        return self._inside(name).read_text(encoding="utf-8")

    def write(self, name: str, text: str) -> None:
        """Put a file in the place of the one called `name`, if there is one."""
        target = self._inside(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        if target.exists():
            shutil.copymode(target, temporary)
        else:
            os.chmod(temporary, 0o644)
        os.replace(temporary, target)

    def save(self, target: str | os.PathLike[str]) -> Path:
        """Copy the directory to `target`, which must not exist; returns it."""
        Path(target).mkdir(parents=True)
        _copy_tree(self.path, Path(target), hard_links=False)
        return Path(target)

    def _inside(self, name: str) -> Path:
        path = self.path / name
        if not path.resolve().is_relative_to(self.path.resolve()):
            raise ValueError(f"{name!r} lies outside the workspace")
        return path

    def __fork__(self, memo: dict[int, Any]) -> Workspace:
        fork = Workspace.__new__(Workspace)
        fork._hard_links = self._hard_links
        fork._adopt()
        _copy_tree(self.path, fork.path, hard_links=self._hard_links)
        return fork

    __deepcopy__ = __fork__

    def __repr__(self) -> str:
        return f"<Workspace {self.path}>"


def _copy_tree(source: Path, target: Path, *, hard_links: bool) -> None:
    def copy(from_path: str, to_path: str) -> None:
        if hard_links:
            os.link(from_path, to_path, follow_symlinks=False)
        elif not _reflink(from_path, to_path):
            shutil.copy2(from_path, to_path)

    shutil.copytree(source, target, symlinks=True, copy_function=copy, dirs_exist_ok=True)


def _reflink(source: str, target: str) -> bool:
    """Make `target` share the blocks of `source`, if the file system can."""
    try:
        import fcntl
    except ImportError:
        return False
    try:
        with open(source, "rb") as from_file, open(target, "wb") as to_file:
            fcntl.ioctl(to_file.fileno(), _FICLONE, from_file.fileno())
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS):
            return False
        raise
    shutil.copystat(source, target)
    return True
