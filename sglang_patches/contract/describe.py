"""``python -m sglang_patches.contract.describe``: generate the tables of ``docs/upstream.md`` from the table of
hooks.

Prints the tables; ``--write`` replaces the generated part of the page.  A test fails if the page is out of date.
Does not need SGLang.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from sglang_patches.contract.patches import PATCHES, Patch, patches_of
from sglang_patches.contract.releases import SUPPORTED
from sglang_patches.contract.upstream import SEAMS, Change, Seam

PAGE = Path(__file__).parents[2] / "docs" / "upstream.md"
BEGIN = "<!-- Written by python -m sglang_patches.contract.describe --write, to the end of the page. -->\n"


def tables() -> str:
    """Return the generated part of the page: changes, hooks by upstream module, other seams."""
    modules = {patch.target: _module_of(patch) for patch in PATCHES}
    hooks = " and ".join(f"{len(patches_of(release))} hooks on SGLang {release}" for release in SUPPORTED)
    parts = [
        f"## The changes\n\nThere are {hooks}; {len(_changes())} changes would make them "
        "unnecessary.\nA hook that needs several changes is counted for each of them.\n",
        _table(
            ("change", "what", "hooks"),
            ((change.name, change.what, str(len(_hooks_of(change)))) for change in _changes()),
        ),
        "## The hooks\n",
    ]
    # The table groups patches by module, in the order of a request's life.
    for module, group in groupby(PATCHES, key=lambda patch: modules[patch.target]):
        parts.append(f"### `{module}`\n")
        parts.append(
            _table(
                ("hook", "what it does", "why", "without it", "unnecessary with"),
                (_row(module, patches) for patches in _by_hook(group)),
            )
        )
    parts.append(
        "## Other seams\n\nWhat Hive relies on besides the hooked functions. `tests/sglang_patches/test_contract.py` "
        "checks these symbols, too.\n"
    )
    parts.append(
        _table(
            ("seam", "what it does", "symbols under `sglang`", "what would help"),
            (
                (
                    f"{seam.name}, `{seam.where}`",
                    seam.does,
                    "; ".join(_symbols(seam)),
                    seam.upstream,
                )
                for seam in SEAMS
            ),
        )
    )
    return "\n".join(parts)


def updated(page: str) -> str:
    """Return the page with its generated part replaced.

    Raises:
        ValueError: if the page does not contain the mark.
    """
    written, mark, _ = page.partition(BEGIN)
    if not mark:
        raise ValueError(f"the page has no line {BEGIN.strip()!r}")
    return f"{written}{BEGIN}\n{tables()}"


def _changes() -> list[Change]:
    """Return all changes that hooks name, sorted by the number of hooks, most first."""
    named = dict.fromkeys(change for patch in PATCHES for change in patch.upstream)
    return sorted(named, key=lambda change: -len(_hooks_of(change)))


def _hooks_of(change: Change) -> list[Patch]:
    return [patch for patch in PATCHES if change in patch.upstream]


def _module_of(patch: Patch) -> str:
    """Return the upstream module as a path in SGLang's repository."""
    parts = patch.target.removeprefix("sglang.").split(".")[:-1]
    if parts[-1][0].isupper():  # a class
        del parts[-1]
    return "/".join(parts) + ".py"


def _by_hook(patches: Iterable[Patch]) -> list[list[Patch]]:
    """Group patches that share a hook."""
    return [list(group) for _, group in groupby(patches, key=lambda patch: (patch.hook, patch.does))]


def _row(module: str, patches: Sequence[Patch]) -> tuple[str, ...]:
    prefix = "sglang." + module.removesuffix(".py").replace("/", ".") + "."
    names = ", ".join(f"`{patch.target.removeprefix(prefix)}`" for patch in patches)
    first = patches[0]
    return (
        f"{first.kind} {names}{_limits(first)}",
        first.does,
        first.why,
        first.breaks,
        "; ".join(change.name for change in first.upstream),
    )


def _limits(patch: Patch) -> str:
    """Return the limits of a hook: the platform and the releases, if not all."""
    limits = ["CPU only"] if patch.group == "cpu" else []
    limits += [f"since {patch.since}"] if patch.since is not None else []
    limits += [f"until {patch.until}"] if patch.until is not None else []
    return f" ({', '.join(limits)})" if limits else ""


def _symbols(seam: Seam) -> Iterable[str]:
    """Yield the symbols of all releases, then those of some releases."""
    for prefix, symbols in (
        ("", seam.symbols),
        *((f"since {first}: ", own) for first, own in seam.since.items()),
    ):
        if symbols or prefix:
            yield prefix + (", ".join(f"`{symbol}`" for symbol in _shortened(symbols)) or "none")


def _shortened(symbols: Iterable[str]) -> Iterable[str]:
    """Return symbols without their packages: `Class.method` or `module.name`."""
    return dict.fromkeys(".".join(symbol.split(".")[-2:]) for symbol in symbols)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m sglang_patches.contract.describe", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write the tables to docs/{PAGE.name}")
    if parser.parse_args(argv).write:
        PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(tables(), end="")


if __name__ == "__main__":
    main()
