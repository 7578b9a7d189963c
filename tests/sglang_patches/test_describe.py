"""The page about hooks matches the table of hooks."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_patches.contract import describe
from sglang_patches.contract.patches import PATCHES
from sglang_patches.contract.upstream import SEAMS


def test_the_page_is_up_to_date() -> None:
    page = describe.PAGE.read_text(encoding="utf-8")
    assert page == describe.updated(page), "run: python -m sglang_patches.contract.describe --write"


def test_the_tables_name_every_hook_and_seam_once() -> None:
    text = describe.tables()
    _, hooks, seams = (
        text.split("\n## ", 1)[0],
        *text.split("\n## The hooks\n")[1].split("\n## Other seams\n"),
    )
    for patch in PATCHES:
        module, _, name = patch.target.removeprefix("sglang.").rpartition(".")
        name = name if module.islower() else f"{module.rpartition('.')[2]}.{name}"
        assert hooks.count(f"`{name}`") == 1, name
    for seam in SEAMS:
        assert seams.count(f"| {seam.name}, ") == 1


def test_all_texts_are_sentences() -> None:
    changes = {change for patch in PATCHES for change in patch.upstream}
    told = [
        *(text for patch in PATCHES for text in (patch.does, patch.why, patch.breaks)),
        *(change.what for change in changes),
        *(text for seam in SEAMS for text in (seam.does, seam.upstream)),
    ]
    assert [text for text in told if not text.endswith(".") or "\n" in text] == []
    assert all(patch.upstream for patch in PATCHES)
    assert len({change.name for change in changes}) == len(changes)


def test_it_replaces_only_the_text_below_the_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "upstream.md"
    page.write_text(f"# Above\n\n{describe.BEGIN}\nof another version\n")
    monkeypatch.setattr(describe, "PAGE", page)
    describe.main(["--write"])
    assert page.read_text() == f"# Above\n\n{describe.BEGIN}\n{describe.tables()}"
    page.write_text("# No mark\n")
    with pytest.raises(ValueError, match="has no line"):
        describe.main(["--write"])


def test_it_prints_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    describe.main([])
    assert capsys.readouterr().out == describe.tables()
