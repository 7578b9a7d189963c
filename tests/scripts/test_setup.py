"""``scripts/setup`` with stand-ins for uv, and the list of pinned packages it installs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

UV = f"""#!/bin/sh
echo "uv $*" >> "$CALLS"
case "$*" in
  *"$FAIL_ON"*) exit 9;;
  venv*) mkdir -p .venv/bin && ln -sf {sys.executable} .venv/bin/python;;
esac
"""


class Checkout:
    """A folder with the script, what it reads, and a PATH on which uv only notes how it was called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls_file = folder.parent / "calls"
        (folder / "scripts").mkdir(parents=True)
        shutil.copy(ROOT / "scripts" / "setup", folder / "scripts")
        (folder / "pyproject.toml").write_text("one")
        (folder / "requirements.txt").write_text("one")
        self.bin = folder.parent / "bin"
        self.bin.mkdir(exist_ok=True)
        self.executable("uv", UV)

    def executable(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)

    def setup(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.folder / "scripts" / "setup"],
            env={
                "PATH": f"{self.bin}:{os.environ['PATH']}",
                "CALLS": str(self.calls_file),
                "FAIL_ON": "nothing",
                "HIVE_PYTHON": sys.executable,
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=60,
        )

    def calls(self) -> list[str]:
        """How uv was called since the last time this was asked."""
        lines = self.calls_file.read_text().splitlines() if self.calls_file.exists() else []
        self.calls_file.unlink(missing_ok=True)
        return lines


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "with a space" / "hive")


def test_it_installs_the_pins_then_the_project_and_then_nothing(checkout: Checkout) -> None:
    first = checkout.setup()
    assert first.returncode == 0, first.stderr
    made, pins, project = checkout.calls()
    assert made.startswith("uv venv")
    assert "--no-deps" in pins
    assert pins.endswith("--requirement requirements.txt")
    assert project.endswith("--editable .")
    second = checkout.setup()
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert checkout.calls() == []


@pytest.mark.parametrize("changed", ["pyproject.toml", "requirements.txt"])
def test_a_change_installs_again_into_the_same_environment(checkout: Checkout, changed: str) -> None:
    checkout.setup()
    checkout.calls()
    (checkout.folder / changed).write_text("two")
    assert checkout.setup().returncode == 0
    assert [call.split()[1] for call in checkout.calls()] == ["pip", "pip"]


def test_a_moved_checkout_gets_a_new_environment(checkout: Checkout) -> None:
    checkout.setup()
    checkout.calls()
    checkout.folder = checkout.folder.rename(checkout.folder.with_name("moved"))
    assert checkout.setup().returncode == 0
    assert [call.split()[1] for call in checkout.calls()] == ["venv", "pip", "pip"]


def test_a_failed_installation_is_tried_again(checkout: Checkout) -> None:
    assert checkout.setup(FAIL_ON="--editable").returncode != 0
    checkout.calls()
    assert checkout.setup().returncode == 0
    assert [call.split()[1] for call in checkout.calls()] == ["pip", "pip"]


def test_without_a_fitting_python_it_says_what_to_install(checkout: Checkout) -> None:
    checkout.executable("old", "#!/bin/sh\nexit 1\n")
    done = checkout.setup(HIVE_PYTHON=str(checkout.bin / "old"))
    assert done.returncode == 1
    assert "Hive needs Python 3.11, 3.12 or 3.13" in done.stderr
    assert checkout.calls() == []


def test_without_ensurepip_and_uv_it_names_debians_package(checkout: Checkout) -> None:
    (checkout.bin / "uv").unlink()
    python = f'#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\nexec {sys.executable} "$@"\n'
    checkout.executable("python", python)
    done = checkout.setup(HIVE_PYTHON=str(checkout.bin / "python"), PATH=f"{checkout.bin}:/usr/bin:/bin")
    assert done.returncode == 1
    assert "apt-get install python3-venv" in done.stderr
    assert not (checkout.folder / ".venv").exists()


def test_the_pins_are_versions_without_addresses_and_hold_what_pyproject_asks_for() -> None:
    text = (ROOT / "requirements.txt").read_text()
    assert "://" not in text
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    pinned = {line.split("==")[0].lower() for line in lines if re.match(r"[\w.-]+==\S+( ;.*)?$", line)}
    assert len(lines) >= len(pinned) > 100
    assert all("==" in line and "@" not in line for line in lines)

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [
        *project["dependencies"],
        *(item for extra in project["optional-dependencies"].values() for item in extra),
    ]
    missing = {re.split(r"[<>=~! \[;]", item)[0].lower() for item in asked} - pinned
    assert not missing, "run scripts/lock"
    assert [line for line in lines if line.startswith("sglang==")] == ["sglang==0.5.17"]
    # It has no wheels, and nobody could install it without a C++ compiler.
    assert "llama-cpp-python" not in pinned
