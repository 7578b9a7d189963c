"""Symbols found by source are those that an import would find."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_patches.contract import check_upstream
from sglang_patches.contract.patches import patches_of
from sglang_patches.contract.releases import SUPPORTED
from sglang_patches.contract.source_tree import SourceTree

FILES = {
    "engine/__init__.py": "",
    "engine/base.py": "class Base:\n    LEFT = 1\n    def kept(self, a, /, b, *more, c=1, **rest): ...\n",
    "engine/tree.py": """
from engine.base import Base
from engine import base as whole

class Tree(Base):
    field: int = 0
    def own(self): ...

class Deep(whole.Base):
    pass

if Tree:
    def chosen(x): ...
else:
    def chosen(y): ...
try:
    import fast as speed
except ImportError:
    speed = None
""",
    "engine/sub/__init__.py": "from .leaf import *\nfrom .leaf import leaf as renamed\nfrom engine.sub import lost\n",
    "engine/sub/leaf.py": "async def leaf(q): ...\nfrom ..tree import Tree\n",
    "engine/bare/inner.py": "pair, (of, them) = 1, (2, 3)\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> SourceTree:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return SourceTree(tmp_path)


@pytest.mark.parametrize(
    ("path", "module", "parameters"),
    [
        ("engine", "engine", None),
        ("engine.base.Base", "engine.base", None),
        ("engine.base.Base.kept", "engine.base", ("self", "a", "b", "c")),
        ("engine.tree.Tree.own", "engine.tree", ("self",)),
        ("engine.tree.Tree.kept", "engine.base", ("self", "a", "b", "c")),
        ("engine.tree.Tree.LEFT", "engine.base", None),
        ("engine.tree.Tree.field", "engine.tree", None),
        ("engine.tree.chosen", "engine.tree", ("x",)),
        ("engine.tree.speed", "engine.tree", None),
        ("engine.sub.leaf", "engine.sub.leaf", None),
        ("engine.sub.leaf.leaf", "engine.sub.leaf", ("q",)),
        ("engine.sub.renamed", "engine.sub.leaf", ("q",)),
        ("engine.sub.Tree.own", "engine.tree", ("self",)),
        ("engine.bare.inner.them", "engine.bare.inner", None),
    ],
)
def test_a_symbol_is_found_where_it_is_defined(
    tree: SourceTree, path: str, module: str, parameters: tuple[str, ...] | None
) -> None:
    found = tree.find(path)
    assert found is not None
    assert (found.module, found.parameters) == (module, parameters)


@pytest.mark.parametrize(
    "path", ["motor", "engine.none", "engine.tree.Tree.none", "engine.tree.chosen.x", "engine.sub.lost"]
)
def test_missing_symbols_are_not_found(tree: SourceTree, path: str) -> None:
    assert tree.find(path) is None


@pytest.mark.parametrize("release", SUPPORTED)
def test_every_symbol_that_is_gone_is_named(
    tree: SourceTree, tmp_path: Path, release: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(check_upstream.problems(release, tree)) >= len(patches_of(release))
    (tmp_path / "sglang").mkdir()
    with pytest.raises(SystemExit) as ended:
        check_upstream.main([release, str(tmp_path)])
    assert ended.value.code == 1
    said = capsys.readouterr().out
    assert all(f"{patch.target} is gone. {patch.breaks}" in said for patch in patches_of(release))


def test_parameters_that_moved_are_shown(tmp_path: Path) -> None:
    patch = next(
        patch for patch in patches_of(SUPPORTED[0]) if patch.target.endswith(".default_radix_cache_factory")
    )
    *folders, name, function = patch.target.split(".")
    folder = tmp_path.joinpath(*folders)
    folder.mkdir(parents=True)
    (folder / f"{name}.py").write_text(f"def {function}(context): ...\n")
    told = [
        text for text in check_upstream.problems(SUPPORTED[0], SourceTree(tmp_path)) if patch.target in text
    ]
    assert told == [f"{patch.target} takes (context); the hook relies on (ctx, ...). {patch.breaks}"]


def test_the_installed_release_keeps_the_contract_by_its_source_too() -> None:
    sglang = pytest.importorskip("sglang", reason="needs the server extra: uv pip install 'hive[server]'")
    folder = Path(sglang.__file__).parent.parent
    assert check_upstream.problems(sglang.__version__, SourceTree(folder)) == []
