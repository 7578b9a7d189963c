"""Sessions that ask for the same states again, as search programs do, and what the servers' caches made of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import httpx
from hive_frontend import Dialogue, HttpClient, agent, arun, gen

from hive.server.server_process import slowdown

SAMPLES = 5
TURNS = 4
CALLS = SAMPLES + TURNS

_PLACES = (
    "a harbour",
    "a mine",
    "a lighthouse",
    "a desert",
    "a glacier",
    "an orchard",
    "a station",
    "an attic",
)


@agent(name="teller")
async def tell(number: int, speaker: str) -> list[str]:
    """Samples of one state, one after the other, and a dialogue: ``CALLS`` answers, all of ``speaker``."""
    place = _PLACES[number % len(_PLACES)]
    answers = [
        await gen(
            f"Story {number} begins in {place}, where the",
            raw=True,
            agent=speaker,
            temperature=0,
            max_tokens=12,
        )
        for _ in range(SAMPLES)
    ]
    dialogue = Dialogue().user(
        f"You are guide {number} of {place}. Describe it to a child who has never been there."
    )
    for _ in range(TURNS):
        answers.append(await gen(dialogue, agent=speaker, temperature=0.7, max_tokens=12))
        dialogue = dialogue.assistant(answers[-1]).user("Go on, and say what else can be seen there.")
    return answers


class Counts(NamedTuple):
    """Of all agents whose names begin alike, on one server or several."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens_generated: int = 0
    tokens_replayed: int = 0

    @property
    def replayed(self) -> float:
        """Share of the output that the Logits Cache served."""
        return self.tokens_replayed / max(1, self.tokens_replayed + self.tokens_generated)

    @property
    def cached(self) -> float:
        """Share of the prompts that the radix cache had."""
        return self.cached_tokens / max(1, self.prompt_tokens)


def seen(url: str) -> dict[str, dict[str, Any]]:
    """The agents that a server knows, by name."""
    answer = httpx.get(f"{url}/hive/agents", trust_env=False, timeout=60).raise_for_status()
    return {entry["name"]: entry for entry in answer.json()["agents"]}


def flush(url: str) -> None:
    """Empty both caches of a server; the engine refuses for a moment after its last answer."""
    end = time.monotonic() + 20 * slowdown()
    while (answer := httpx.post(f"{url}/flush_cache", trust_env=False, timeout=60)).status_code != 200:
        assert time.monotonic() < end, answer.text
        time.sleep(0.05)


def counted(urls: Sequence[str], prefix: str) -> Counts:
    """What servers counted of the agents whose names begin with ``prefix``."""
    found = [entry for url in urls for name, entry in seen(url).items() if name.startswith(prefix)]
    return Counts(*(sum(entry[field] for entry in found) for field in Counts._fields))


async def run_sessions(client: HttpClient, prefix: str, sessions: int) -> list[list[str]]:
    """Sessions side by side, each a run of its own with an agent of its own; their answers."""
    runs = [
        arun(tell, number, f"{prefix}{number}", model=client, seed=number, max_concurrency=1)
        for number in range(sessions)
    ]
    results = await asyncio.gather(*runs)
    await client.aclose()
    return [result.value for result in results]
