"""The public names, which are imported when they are first used."""

from __future__ import annotations

import ast
import subprocess
import sys

import hive_frontend
import pytest

import hive


def test_all_public_names_are_there() -> None:
    for name in hive_frontend.__all__:
        assert getattr(hive, name) is getattr(hive_frontend, name)
        assert name in dir(hive)
        assert name in dir(hive_frontend)
    found: dict[str, object] = {}
    exec("from hive import *", found)
    assert hive_frontend.__all__ == hive.__all__
    assert set(hive.__all__) <= found.keys()


def test_type_checkers_see_what_is_imported() -> None:
    assert hive_frontend.__file__
    with open(hive_frontend.__file__, encoding="utf-8") as file:
        nodes = [node for node in ast.walk(ast.parse(file.read())) if isinstance(node, ast.ImportFrom)]
    seen = {
        each.name: str(node.module).removeprefix("hive_frontend.")
        for node in nodes
        if str(node.module).startswith("hive_frontend.")
        for each in node.names
    }
    assert seen == hive_frontend._HOMES
    assert seen.keys() == set(hive_frontend.__all__)


@pytest.mark.parametrize("package", [hive, hive_frontend])
def test_a_name_that_is_not_there(package: object) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'gem'"):
        package.gem  # type: ignore[attr-defined]  # noqa: B018


def test_the_wire_needs_the_standard_library_alone() -> None:
    code = "import sys, hive_frontend.wire; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, env=_env()
    )
    assert (
        set(done.stdout.split()) - sys.stdlib_module_names
        == {"__main__", "hive_frontend"} - sys.stdlib_module_names
    )


def _env() -> dict[str, str]:
    assert hive_frontend.__file__
    return {"PYTHONPATH": hive_frontend.__file__.rpartition("/hive_frontend/")[0]}
