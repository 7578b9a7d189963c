"""``python -m sglang_patches.contract.describe``: the tables of ``docs/upstream.md``, made of the table of hooks.

Prints them; ``--write`` puts them into the page, between its two marks.  A test compares the page with what would be
written.  Needs no SGLang.
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
    """The generated part of the page: changes, hooks by upstream module, other seams."""
    modules = {patch.target: _module_of(patch) for patch in PATCHES}
    hooks = " and ".join(f"{len(patches_of(release))} hooks on SGLang {release}" for release in SUPPORTED)
    parts = [
        f"## The changes\n\nThere are {hooks}; {len(_changes())} changes would make them "
        "unnecessary.\nA hook that serves several purposes is counted at each of them.\n",
        _table(
            ("change", "what", "hooks"),
            ((change.name, change.what, str(len(_hooks_of(change)))) for change in _changes()),
        ),
        "## The hooks\n",
    ]
    # Patches of a module stand together in the table, and the order there is the order of a request's life.
    for module, group in groupby(PATCHES, key=lambda patch: modules[patch.target]):
        parts.append(f"### `{module}`\n")
        parts.append(
            _table(
                ("hook", "what it does", "why", "without it", "unnecessary with"),
                (_row(module, patches) for patches in _alike(group)),
            )
        )
    parts.append(
        "## Other seams\n\nWhat Hive relies on beside the hooked functions. `tests/sglang_patches/test_contract.py` "
        "looks for these symbols, too.\n"
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
    """The page with its generated part renewed.

    Raises:
        ValueError: when the page has lost its mark.
    """
    written, mark, _ = page.partition(BEGIN)
    if not mark:
        raise ValueError(f"the page has no line {BEGIN.strip()!r}")
    return f"{written}{BEGIN}\n{tables()}"


def _changes() -> list[Change]:
    """All changes that hooks name, those first that most hooks name."""
    named = dict.fromkeys(change for patch in PATCHES for change in patch.upstream)
    return sorted(named, key=lambda change: -len(_hooks_of(change)))


def _hooks_of(change: Change) -> list[Patch]:
    return [patch for patch in PATCHES if change in patch.upstream]


def _module_of(patch: Patch) -> str:
    """The upstream module as a path in SGLang's repository."""
    parts = patch.target.removeprefix("sglang.").split(".")[:-1]
    if parts[-1][0].isupper():  # a class
        del parts[-1]
    return "/".join(parts) + ".py"


def _alike(patches: Iterable[Patch]) -> list[list[Patch]]:
    """Patches that one hook serves, together."""
    return [list(group) for _, group in groupby(patches, key=lambda patch: (patch.hook, patch.does))]


def _row(module: str, patches: Sequence[Patch]) -> tuple[str, ...]:
    prefix = "sglang." + module.removesuffix(".py").replace("/", ".") + "."
    names = ", ".join(f"`{patch.target.removeprefix(prefix)}`" for patch in patches)
    first = patches[0]
    return (
        f"{first.kind} {names}{_where(first)}",
        first.does,
        first.why,
        first.breaks,
        "; ".join(change.name for change in first.upstream),
    )


def _where(patch: Patch) -> str:
    """Where a hook is not active everywhere."""
    limits = ["CPU only"] if patch.group == "cpu" else []
    if patch.only is not None:
        limits.append(f"{patch.only} only")
    return f" ({', '.join(limits)})" if limits else ""


def _symbols(seam: Seam) -> Iterable[str]:
    """The symbols of all releases, then those of one."""
    for prefix, symbols in (
        ("", seam.symbols),
        *((f"{name} only: ", own) for name, own in seam.only.items()),
    ):
        yield prefix + ", ".join(f"`{symbol}`" for symbol in _shortened(symbols))


def _shortened(symbols: Iterable[str]) -> Iterable[str]:
    """Symbols without the packages around them: `Class.method`, or `module.name`."""
    return dict.fromkeys(".".join(symbol.split(".")[-2:]) for symbol in symbols)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m sglang_patches.contract.describe", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write them into docs/{PAGE.name}")
    if parser.parse_args(argv).write:
        PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(tables(), end="")


if __name__ == "__main__":
    main()
