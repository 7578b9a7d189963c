"""The workflows of the KV benchmark: who sees what, that their texts are conversations, and what is made of answers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from examples.choreography.problems import COUNT, answer_in, problems
from examples.choreography.workflows import (
    DEBATERS,
    VERDICT_TOKENS,
    agreed,
    elected,
    iterative_debate,
    parallel_debate,
    tree_of_thoughts,
)

PROBLEM = "How many?"
SYSTEM = re.compile(r"<\|im_start\|>system\n[^<]+")
TURNS = re.compile(r"(<\|im_end\|>\n<\|im_start\|>(user|assistant)\n[^<]+)+")


@dataclass
class Said:
    """A message of the script."""

    name: str
    whole: str
    text: str
    parents: list[str]
    seed: int | None = None
    max_tokens: int = 0


@dataclass
class Script:
    """Answers by a rule, and writes down all calls."""

    answer: Callable[[str], str] = lambda name: f" it is {len(name)}"
    said: dict[str, Said] = field(default_factory=dict)
    running: int = 0
    most: int = 0

    async def prefill(
        self,
        text: str,
        parents: Sequence[Said] = (),
        *,
        offsets: Sequence[int | None] | None = None,
        new_offset: int | None = None,
        name: str = "",
    ) -> Said:
        assert text
        return self._add(Said(name, text, text, [parent.name for parent in parents]))

    async def decode(
        self,
        header: str,
        parents: Sequence[Said] = (),
        *,
        max_tokens: int,
        temperature: float,
        seed: int,
        offsets: Sequence[int | None] | None = None,
        new_offset: int | None = None,
        name: str = "",
    ) -> Said:
        assert temperature == 0.7
        prompt = "".join(parent.whole for parent in parents) + header
        opened = SYSTEM.match(prompt)
        assert opened
        assert TURNS.fullmatch(prompt, opened.end()), prompt
        assert "<|im_start|>assistant\n" in header
        # A blank at the end would be a token that no model expects there.
        assert not header.endswith(" ")
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        text = self.answer(name)
        return self._add(
            Said(name, header + text, text, [parent.name for parent in parents], seed, max_tokens)
        )

    def _add(self, message: Said) -> Said:
        assert message.name
        assert message.name not in self.said
        self.said[message.name] = message
        return message

    def decoded(self) -> list[Said]:
        return [message for message in self.said.values() if message.seed is not None]


async def test_tree_of_thoughts_votes_on_all_drafts_and_follows_the_best() -> None:
    io = Script(
        lambda name: " 5, I think" if name in ("vote 1", "vote 3") else " 2." if "vote" in name else name
    )
    assert await tree_of_thoughts(io, PROBLEM, votes=3) == "final"
    drafts = [f"draft {number}" for number in range(1, 9)]
    for name in drafts:
        assert io.said[name].parents == ["system of proposers", "problem"]
    for number in (1, 2, 3):
        assert io.said[f"vote {number}"].parents == [
            *("system of voters", "problem"),
            *drafts,
            "question to voters",
        ]
        assert io.said[f"vote {number}"].max_tokens == VERDICT_TOKENS
    assert io.said["final"].parents == [
        *("system of the finisher", "problem", "draft 5", "question to the finisher"),
    ]
    assert len(io.decoded()) == 12
    assert io.most == 8
    # What is prefilled is encoded on its own, once for all who read it.
    assert not any(message.parents for message in io.said.values() if message.seed is None)


async def test_debaters_read_all_of_the_last_round_with_their_own_answer_last() -> None:
    io = Script()
    await parallel_debate(io, PROBLEM)
    assert list(DEBATERS) == ["Alice", "Bob", "Carol"]
    assert io.said["Bob 1"].parents == ["system of Bob", "problem"]
    assert io.said["Alice 2"].parents == [
        *("system of Alice", "problem", "Bob 1", "Carol 1", "Alice 1", "question to Alice"),
    ]
    assert io.said["Bob 3"].parents == [
        *("system of Bob", "problem", "Alice 2", "Carol 2", "Bob 2", "question to Bob"),
    ]
    assert len(io.decoded()) == 9
    assert io.most == 3


async def test_a_debate_of_fewer_agents() -> None:
    io = Script()
    await parallel_debate(io, PROBLEM, agents=2, rounds=2)
    assert [message.name for message in io.decoded()] == ["Alice 1", "Bob 1", "Alice 2", "Bob 2"]
    for agents in (0, 4):
        with pytest.raises(ValueError, match="there are 3 agents"):
            await parallel_debate(io, PROBLEM, agents=agents)


async def test_sides_and_moderator_share_a_growing_history() -> None:
    io = Script()
    assert await iterative_debate(io, PROBLEM) == io.said["decision"].text
    history = [f"{side} {number}" for number in (1, 2, 3) for side in ("Affirmative", "Negative")]
    for place, name in enumerate(history):
        side = name.split()[0].lower()
        question = [f"question to the {side} side"] if place else []
        assert io.said[name].parents == [f"system of the {side} side", "problem", *history[:place], *question]
    moderator = ["system of the moderator", "problem"]
    assert io.said["verdict 2"].parents == [*moderator, *history[:4], "question for a verdict"]
    assert io.said["decision"].parents == [*moderator, *history, "question for the decision"]
    assert "verdict 3" not in io.said
    assert len(io.decoded()) == 9
    assert io.most == 1


@pytest.mark.parametrize(
    ("verdict", "stops"), [(" Yes, both say 4", True), (" No", False), (" yesterday", False)]
)
async def test_a_moderator_ends_a_debate_in_which_both_agree(verdict: str, stops: bool) -> None:
    for stop_early in (True, False):
        io = Script(lambda name: verdict if name.startswith("verdict") else "no number")
        await iterative_debate(io, PROBLEM, stop_early=stop_early)
        assert ("Affirmative 2" not in io.said) == (stops and stop_early)


async def test_every_call_has_a_seed_of_its_own_and_the_same_in_every_run() -> None:
    seeds = []
    for seed in (1, 1, 2):
        of_run: list[int | None] = []
        for workflow in (tree_of_thoughts, parallel_debate, iterative_debate):
            io = Script()
            await workflow(io, PROBLEM, seed=seed)
            drawn = [message.seed for message in io.decoded()]
            assert len(set(drawn)) == len(drawn)
            of_run += drawn
        seeds.append(of_run)
    assert seeds[0] == seeds[1]
    assert not set(seeds[0]) & set(seeds[2])
    assert all(seed is not None and 0 <= seed < 2**31 for seed in seeds[0])


def test_ballots_elect_what_most_of_them_name() -> None:
    assert elected([" 3, not 1", " 3", " 1"], 8) == 3
    assert elected([" 2", " 1"], 8) == 1
    assert elected([" 12", "the second", ""], 8) == 1
    assert elected([" 9", " 8"], 8) == 8


def test_a_debate_comes_to_the_answer_that_most_have() -> None:
    assert agreed(["so 4", "it is 5", "I say 5"]) == "it is 5"
    assert agreed(["no", "I say 5"]) == "I say 5"
    assert agreed(["no", "nor I"]) == "no"


def test_problems_are_many_and_the_same_for_the_same_seed() -> None:
    made = problems()
    assert len({problem.text for problem in made}) == len(made) == COUNT
    assert made == problems(seed=0)
    assert made == problems(500)[:COUNT]
    assert made != problems(seed=1)
    for problem in problems(500):
        assert problem.answer > 0
        assert problem.text.endswith("?")
        assert "{" not in problem.text


def test_the_answer_is_the_last_number() -> None:
    assert answer_in("3 + 4 = 7, so 1,007.") == 1007
    assert answer_in("about 12, and that is it") == 12
    assert answer_in("none") is None
