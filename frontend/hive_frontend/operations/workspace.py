"""Workspaces: directories that fork together with the agent that edits them."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

_FICLONE = 0x40049409
"""Linux ioctl that makes a file share the blocks of another one, copy-on-write."""


class Workspace:
    """A directory of which every branch of a search has its own copy.

        ws = Workspace("designs/fifo")                  # a copy of it
        ws.write("fifo.v", patched)
        log = await tool(simulate, ws)                  # a function that uses ws.path

    When a state forks, the directory is copied: with reflinks if the file system supports them, so that files cost
    nothing until they change, otherwise byte by byte. `hard_links=True` links files instead of copying them. That is
    cheap on all file systems, but only correct if files are replaced and never changed in place: `write` replaces
    them, and so do most editors and compilers, but not `open(path, "a")`.

    The directory is in the system's folder for temporary files, and is deleted with the last reference to the
    workspace; `save` makes a permanent copy.
    """

    def __init__(self, source: str | os.PathLike[str] | None = None, *, hard_links: bool = False) -> None:
        self._hard_links = hard_links
        self._adopt()
        if source is not None:
            if not Path(source).is_dir():
                raise NotADirectoryError(
                    f"a workspace is made from a directory, and {os.fspath(source)!r} is not one"
                )
            # No hard links here: other programs may change the source in place.
            _copy_tree(Path(source), self.path, hard_links=False)

    def _adopt(self) -> None:
        directory = tempfile.mkdtemp(prefix="hive-workspace-")
        self.path: Path = Path(directory)
        """The directory. It differs in each fork, so read this attribute whenever you need it."""
        weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)

    def read(self, name: str) -> str:
        """Return the text of a file."""
        return self._inside(name).read_text(encoding="utf-8")

    def write(self, name: str, text: str) -> None:
        """Write a file, replacing any file called `name`."""
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
        """Copy the directory to `target`, which must not exist, and return its path."""
        Path(target).mkdir(parents=True)
        _copy_tree(self.path, Path(target), hard_links=False)
        return Path(target)

    def _inside(self, name: str) -> Path:
        path = self.path / name
        if not path.resolve().is_relative_to(self.path.resolve()):
            raise ValueError(f"{name!r} is outside the workspace: give a path relative to its directory")
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
    """Make `target` share the blocks of `source`; return whether the file system supports it."""
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
