"""Every snippet of the documents runs, page by page, and prints what the page says that it prints.

A page is one program: its ```python blocks share a namespace, in the order of the page. Comments, which readers of
the rendered page do not see, say how the next block is to be taken:

    <!-- test: setup                  code that runs here, and is not shown
    server = FunctionModel(...)
    -->
    <!-- test: output -->             the next block is what the last snippet printed
    <!-- test: raises CompileError --> the next snippet raises this; an output block then has its message
    <!-- test: skip: why -->          the next snippet does not run, for this reason

No real model is called: where a snippet names a server by its URL, the page's own `server` answers, a model of
`hive.testing`. Tracebacks point into the page.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import io
import linecache
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import hive_frontend
import pytest
from hive_frontend import Client, agent
from hive_frontend.client.http import client
from hive_frontend.testing import forbid_real_calls

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
FURTHER_PAGES = [ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
"""Pages without snippets, whose links are looked at."""
_KINDS = ("python", "console", "text")
_COMMENT = re.compile(r"<!-- test: (?P<what>.*?)(?: ?-->)?")


@dataclass
class Block:
    """Something on a page that is run or compared."""

    kind: str
    """The language of a fenced block, or `setup`."""
    line: int
    """Of its first line of text, from 1."""
    text: str
    directive: str = ""


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page, each with the directive before it."""
    blocks: list[Block] = []
    directive = ""
    lines = iter(enumerate(page.splitlines(), start=1))
    for number, line in lines:
        if match := _COMMENT.fullmatch(line):
            assert not directive, f"line {number}: a second directive before a block"
            what = match["what"]
            if what == "setup":
                text = _until(lines, "-->", number)
                blocks.append(Block("setup", number + 1, text))
            else:
                directive = what
        elif line.startswith("```"):
            kind = line[3:].strip()
            assert kind in _KINDS, f"line {number}: a block of {kind!r} would be neither run nor compared"
            blocks.append(Block(kind, number + 1, _until(lines, "```", number), directive))
            directive = ""
    assert not directive, f"{directive!r} has no block after it"
    return blocks


def _until(lines: Iterator[tuple[int, str]], end: str, start: int) -> str:
    text = []
    for _, line in lines:
        if line == end:
            return "".join(f"{line}\n" for line in text)
        text.append(line)
    raise AssertionError(f"the block that begins in line {start} has no end")


class Page:
    """Runs the snippets of one page."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.blocks = blocks_of(path.read_text(encoding="utf-8"))
        self.names: dict[str, Any] = {"__name__": path.stem}
        self._printed: str | None = None
        self._register()

    def _register(self) -> None:
        """Give Python, and the compiler of agents, the source of the snippets, each at its lines of the page."""
        lines: list[str] = []
        for block in self.blocks:
            if self._is_code(block):
                lines += ["\n"] * (block.line - 1 - len(lines)) + block.text.splitlines(keepends=True)
        # No time of modification: what stands here is not to be compared with the file.
        linecache.cache[str(self._path)] = (sum(map(len, lines)), None, lines, str(self._path))

    @staticmethod
    def _is_code(block: Block) -> bool:
        return block.kind in ("python", "setup") and not block.directive.startswith("skip")

    def run(self) -> None:
        for block in self.blocks:
            if block.directive.startswith("skip"):
                assert re.fullmatch(r"skip: \S.*", block.directive), (
                    f"line {block.line}: skipped without a reason"
                )
            elif self._is_code(block):
                self._printed = self._execute(block)
            elif block.directive == "output":
                assert self._printed is not None, (
                    f"line {block.line}: nothing was printed that could be compared"
                )
                assert self._printed == block.text, f"{self._path.name}:{block.line}: other output"
                self._printed = None
            else:
                assert not block.directive, f"line {block.line}: unknown directive {block.directive!r}"

    def _execute(self, block: Block) -> str:
        source = "\n" * (block.line - 1) + block.text
        code = compile(source, str(self._path), "exec", dont_inherit=True)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            if block.directive.startswith("raises "):
                name = block.directive.removeprefix("raises ")
                expected = getattr(hive_frontend, name, None) or getattr(builtins, name)
                with pytest.raises(expected) as caught:
                    exec(code, self.names)
                print(str(caught.value).replace(str(self._path), self._path.name))
            else:
                exec(code, self.names)
        return printed.getvalue()


@pytest.fixture
def only_the_pages_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """URLs lead to the model called `server` in the namespace that is put into the dict."""
    names: dict[str, Any] = {}

    def connect(url: str, **_: Any) -> Client:
        assert "server" in names, f"the page names {url}, and no `server` that answers in its place"
        found = names["server"]
        assert isinstance(found, Client)
        return found

    monkeypatch.setattr(client, "HttpClient", connect)
    monkeypatch.setattr(sys.modules[agent.__module__], "HttpClient", connect)
    monkeypatch.chdir(tmp_path)
    with forbid_real_calls():
        yield names


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_snippets_of_a_page(path: Path, only_the_pages_model: dict[str, Any]) -> None:
    page = Page(path)
    page.names = only_the_pages_model
    page.names["__name__"] = path.stem
    page.run()


def test_a_traceback_points_into_the_page(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(
        "# Title\n\n```python\nfrom hive import agent, run\nfrom hive.testing import ScriptedModel\n\n\n"
        "@agent\nasync def broken() -> None:\n    raise ValueError('here')\n\n\n"
        "run(broken, model=ScriptedModel([]))\n```\n"
    )
    with pytest.raises(ValueError, match="here") as caught:
        Page(path).run()
    last = caught.traceback[-1]
    assert (str(last.path), last.lineno + 1) == (str(path), 10)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```python\nprint(1)\n```\n<!-- test: output -->\n```text\n2\n```\n", "other output"),
        ("<!-- test: output -->\n```text\n2\n```\n", "nothing was printed"),
        ("<!-- test: skip: -->\n```python\n1/0\n```\n", "without a reason"),
        ("<!-- test: skip -->\n```python\n1/0\n```\n", "without a reason"),
        ("<!-- test: outptu -->\n```text\n2\n```\n", "unknown directive"),
        ("<!-- test: output -->\n", "no block after it"),
        ("```python\n1\n", "has no end"),
        ("```py\n1/0\n```\n", "neither run nor compared"),
    ],
)
def test_mistakes_of_a_page_are_noticed(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(text)
    with pytest.raises(AssertionError, match=complaint):
        Page(path).run()


def commands() -> list[tuple[str, str]]:
    """All lines of ```console blocks that a reader would type."""
    found = []
    for path in PAGES:
        for block in blocks_of(path.read_text(encoding="utf-8")):
            if block.kind == "console" and not block.directive.startswith("skip"):
                text = block.text.replace("\\\n", " ")
                found += [(path.name, line[2:]) for line in text.splitlines() if line.startswith("$ ")]
    return found


@pytest.mark.parametrize(("page", "command"), commands())
def test_the_commands_exist(page: str, command: str) -> None:
    try:
        words = shlex.split(command, comments=True)
    except ValueError:
        words = command.split()  # a quotation that goes on in the next line
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        del words[0]
    program, *rest = words
    if Path(program).name == "python":
        assert rest[0] == "-m" or rest[0].endswith(".py"), command
        if rest[0] == "-m":
            assert importlib.util.find_spec(rest[1]) is not None, f"{page}: there is no module {rest[1]}"
            if rest[1].startswith("examples."):
                known = help_of(rest[1])
                for flag in filter(lambda word: word.startswith("--"), rest):
                    assert re.search(rf"{flag}\b", known), f"{page}: {rest[1]} has no {flag}"
    elif "/" in program:
        file = ROOT / program
        assert file.is_file(), f"{page}: there is no {program}"
        assert os.access(file, os.X_OK), f"{page}: {program} cannot be run"
    else:
        assert program in ("curl", "uv", "pip") or shutil.which(program), f"{page}: what is {program}?"


@lru_cache
def help_of(module: str) -> str:
    """What a command says of its options."""
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_links_lead_somewhere() -> None:
    for path in [*PAGES, *FURTHER_PAGES]:
        text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if not re.match(r"https?:", target):
                assert (path.parent / target).exists(), f"{path.name} links to {target}, which is not there"
        anchors = {
            re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
            for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        }
        for anchor in re.findall(r"\]\(#([^)]+)\)", text):
            assert anchor in anchors, f"{path.name} has no heading #{anchor}"


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for path in (ROOT / "docs").glob("*.md"):
        assert path.name == "index.md" or f"({path.name})" in index
