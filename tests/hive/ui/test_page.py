"""The page of ``/hive/ui`` in a browser, over events that no well-meaning server would send."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hive.server.ui import page
from tests.browser import Tab, chromium, needs_chromium
from tests.hive.ui.page_server import PageServer, page_server

EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
LONG = "solver." + "x" * 120


def agent(name: str, **fields: Any) -> dict[str, Any]:
    counts = ("requests", "running", "prompt_tokens", "cached_tokens", "tokens_generated", "tokens_replayed")
    tokens = ("resident_tokens", "stored_tokens", "evicted_tokens")
    return {
        "name": name,
        "description": "",
        **dict.fromkeys((*counts, *tokens), 0),
        "contribution": None,
        **fields,
    }


def session(name: str, **fields: Any) -> dict[str, Any]:
    counts = ("states", "running", "requests", "tokens_generated", "tokens_replayed", "began", "last_active")
    return {"name": name, "agents": [], "state": None, **dict.fromkeys(counts, 0), **fields}


def tell(server: PageServer, evicted: int = 0) -> None:
    agents = [
        agent(
            EVIL, description=EVIL, requests=30, running=2, resident_tokens=1200, contribution={"score": 0.25}
        ),
        agent(LONG, description="long " * 80, requests=20, resident_tokens=300, evicted_tokens=evicted),
        agent(
            "critic",
            requests=10,
            prompt_tokens=200,
            cached_tokens=50,
            tokens_generated=12345,
            tokens_replayed=7,
        ),
    ]
    server.tell(
        agents={"agents": agents, "omitted": 3},
        scores={"round": 9, "history": {EVIL: [[7, 0.5], [8, 1.0], [9, 0.25]], "gone": [[1, 0.5]]}},
        requests={"running": 4, "queued": 2, "replaying": 1, "waiting": 0},
        sessions={
            "sessions": [
                session("s-1", agents=[EVIL, LONG], states=12, state=EVIL, running=3, requests=40),
                session(LONG, requests=1),
            ],
            "omitted": 1,
        },
        logitscache={"tokens_replayed": 30, "tokens_generated": 70, "bytes": 2**21, "capacity_bytes": 2**30},
        radixcache={
            "policy": EVIL,
            "capacity_tokens": 4096,
            "resident_tokens": 1500,
            "evicted_tokens": evicted,
            "evictions": 1,
        },
    )


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with chromium(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture
def server() -> Iterator[PageServer]:
    with page_server() as served:
        yield served


def opened(tab: Tab, server: PageServer, width: int = 1300, *, dark: bool = False) -> None:
    tab.complaints.clear()
    tab.view(width, 900, dark=dark)
    tab.open(server.url + page.PATH)
    tab.until("document.querySelectorAll('#agents tr').length === 3")


pytestmark = needs_chromium


def test_names_are_text(tab: Tab, server: PageServer) -> None:
    tell(server)
    opened(tab, server)
    assert tab.run("[...document.querySelectorAll('.name')].map(e => e.textContent)") == [
        EVIL,
        LONG,
        "critic",
        "s-1",
        LONG,
    ]
    assert tab.run("document.querySelector('.about').textContent") == EVIL
    assert tab.run("document.querySelector('.chip').textContent") == EVIL
    assert tab.run("document.querySelectorAll('img').length") == 0
    assert tab.run("document.querySelectorAll('script').length") == 1
    assert tab.run("document.title") == "Hive"
    # A browser asks for an icon by itself.
    assert set(server.asked) <= {page.PATH, "/hive/events", "/favicon.ico"}
    assert [text for text in tab.complaints if "404" not in text] == []


def test_numbers_are_those_of_the_events(tab: Tab, server: PageServer) -> None:
    tell(server)
    opened(tab, server)
    seen = tab.run(
        "Object.fromEntries(['running', 'ratio', 'resident', 'evicted'].map(id => [id, $(id).textContent]))"
    )
    assert seen == {"running": "4", "ratio": "30.0%", "resident": "1,500", "evicted": "0"}
    assert tab.run("$('waiting').textContent") == "2 queued · 1 in replay"
    cells = """[...document.querySelectorAll('#agents tr')].map(
      row => [...row.children].slice(1).map(cell => cell.innerText.trim()))"""
    assert tab.run(cells) == [
        ["0.250", "", "30 2 running", "0", "0", "0.0%", "1,200"],
        ["-", "", "20", "0", "0", "0.0%", "300"],
        ["-", "", "10", "12.3k", "7", "25.0%", "0"],
    ]
    widths = "[...$('shares').children].map(e => e.getBoundingClientRect().width / $('shares').clientWidth)"
    assert tab.run(widths) == [pytest.approx(1200 / 4096, abs=0.01), pytest.approx(300 / 4096, abs=0.01)]
    assert tab.run("document.querySelectorAll('#agents tr')[0].querySelectorAll('path').length") == 2
    assert "3 more" in tab.run("$('agents-note').textContent")


def test_evictions_flow(tab: Tab, server: PageServer) -> None:
    tell(server)
    opened(tab, server)
    assert tab.run("$('flow-top').textContent") == "nothing was evicted"
    tab.until("samples.length >= 2")
    tell(server, evicted=64)
    tab.until("document.querySelectorAll('#flow rect').length === 1")
    assert tab.run("$('flow-legend').innerText").split("\n") == [LONG, "64"]
    assert "up to 32 tokens/s" in tab.run("$('flow-top').textContent")
    assert tab.run("$('evicted').textContent") == "64"


@pytest.mark.parametrize(
    ("width", "dark"), [(1300, False), (1300, True), (820, False), (360, False), (360, True)]
)
def test_it_fits(tab: Tab, server: PageServer, tmp_path: Path, width: int, dark: bool) -> None:
    tell(server, evicted=5)
    opened(tab, server, width, dark=dark)
    assert tab.run("document.documentElement.scrollWidth") <= width, "nobody has to scroll sideways"
    out = """[...document.querySelectorAll('section, .run, .big, td, .legend li')].filter(e => {
      const box = e.getBoundingClientRect(); return box.right > innerWidth + 1 || box.left < 0; }).length"""
    assert tab.run(out) == 0
    overlaps = """[...document.querySelectorAll('#agents tr')].flatMap(row => {
      const boxes = [...row.querySelectorAll('.name, .about, .number, .tokens')].filter(e => e.textContent)
        .map(e => e.getBoundingClientRect());
      return boxes.flatMap((a, i) => boxes.slice(i + 1).filter(b => a.left < b.right - 1 && b.left < a.right - 1
        && a.top < b.bottom - 1 && b.top < a.bottom - 1)); }).length"""
    assert tab.run(overlaps) == 0
    background = tab.run("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 24, 31)" if dark else "rgb(245, 246, 249)")
    assert tab.picture(tmp_path / "page.png").stat().st_size > 10_000


def test_the_policy_lets_nothing_in(tab: Tab, server: PageServer) -> None:
    tell(server)
    opened(tab, server)
    tab.run(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.owned = 1'}))"
    )
    tab.run(
        "document.body.append(Object.assign(document.createElement('img'), {src: 'http://127.0.0.1:9/x.png'}))"
    )
    assert tab.run("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')") == "refused"
    assert tab.run("window.owned") is None
    assert sum("Content Security Policy" in text for text in tab.complaints) >= 3


def test_a_key_is_asked_for_and_kept_in_the_tab(tab: Tab) -> None:
    with page_server(key="right") as server:
        tell(server)
        tab.view(360, 800)
        tab.open(server.url + page.PATH)
        tab.until("!$('ask').hidden")
        assert tab.run("$('status').textContent") == "needs a key"
        for typed in ("wrong", "right"):
            tab.run(f"$('secret').value = '{typed}'")
            tab.run("document.querySelector('#key button').click()")
            if typed == "wrong":
                tab.until("!$('ask').hidden")
        tab.until("$('status').textContent === 'live'")
        assert tab.run("$('ask').hidden")
        assert tab.run("document.querySelectorAll('#agents tr').length") == 3
        assert tab.run("[sessionStorage.getItem('hive-key'), localStorage.length, document.cookie]") == [
            "right",
            0,
            "",
        ]
        assert all("right" not in path for path in server.asked)
        tab.run("sessionStorage.clear()")


def test_it_comes_back_after_the_server_was_away(tab: Tab, server: PageServer) -> None:
    tell(server)
    opened(tab, server)
    server.hang_up()
    tab.until("$('status').textContent.startsWith('connection lost')")
    server.told.clear()
    tell(server, evicted=9)
    tab.until("$('status').textContent === 'live' && $('evicted').textContent === '9'")


def test_an_empty_server_says_so(tab: Tab, server: PageServer) -> None:
    server.tell(
        agents={"agents": [], "omitted": 0},
        scores={"round": 0, "history": {}},
        sessions={"sessions": [], "omitted": 0},
        requests={"running": 0, "queued": 0, "replaying": 0, "waiting": 0},
    )
    tab.view(1300, 900)
    tab.open(server.url + page.PATH)
    tab.until("samples.length")
    text = tab.run("document.body.innerText")
    assert "No agent has asked for anything yet." in text
    assert "No program runs." in text
    assert "Tokens from the Logits Cache" not in text, "there is none"
