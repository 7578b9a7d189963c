"""``python -m sglang_patches.contract.check_upstream VERSION FOLDER``: check the contract against a release's source.

FOLDER contains the release's unpacked package ``sglang``, without its dependencies; ``scripts/check_upstream``
downloads it.  Every symbol that Hive hooks or uses must exist, with the parameters that Hive relies on.  This does
not check behaviour: ``scripts/test_upstream`` does.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from sglang_patches.contract.patches import Patch, patches_of
from sglang_patches.contract.releases import SUPPORTED
from sglang_patches.contract.source_tree import SourceTree
from sglang_patches.contract.upstream import SEAMS


def problems(release: str, tree: SourceTree) -> list[str]:
    """Return a sentence for each part of a release's contract that a source tree breaks."""
    of_hooks = [problem for patch in patches_of(release) if (problem := _problem(patch, tree)) is not None]
    return of_hooks + [
        f"sglang.{symbol} is gone; {seam.where} uses it ({seam.name})."
        for seam in SEAMS
        for symbol in seam.symbols_of(release)
        if tree.find(f"sglang.{symbol}") is None
    ]


def _problem(patch: Patch, tree: SourceTree) -> str | None:
    definition = tree.find(patch.target)
    if definition is None:
        return f"{patch.target} is gone. {patch.breaks}"
    parameters = definition.parameters
    if parameters is None:
        return f"{patch.target} is not a function. {patch.breaks}"
    if parameters[: len(patch.parameters)] != patch.parameters:
        return (
            f"{patch.target} takes ({', '.join(parameters)}); "
            f"the hook relies on ({', '.join(patch.parameters)}, ...). {patch.breaks}"
        )
    return None


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m sglang_patches.contract.check_upstream", description=__doc__
    )
    parser.add_argument("version", choices=SUPPORTED, help="release of SGLang whose hooks to check")
    parser.add_argument("folder", type=Path, help="folder that contains the package sglang")
    options = parser.parse_args(argv)
    if not (options.folder / "sglang").is_dir():
        parser.error(f"there is no package sglang in {options.folder}")
    found = problems(options.version, SourceTree(options.folder))
    for problem in found:
        print(f"check_upstream: SGLang {options.version}: {problem}")
    if found:
        raise SystemExit(1)
    seams = sum(len(seam.symbols_of(options.version)) for seam in SEAMS)
    print(
        f"check_upstream: SGLang {options.version}: {len(patches_of(options.version))} hooks "
        f"and {seams} other symbols are where Hive looks for them"
    )


if __name__ == "__main__":
    main()
