"""Three workflows of several agents, as programs over two calls: Tree of Thoughts and two kinds of debate.

They are those of the Prompt Choreography paper (sections 2.3 and 4, figure 2, appendix A), with prompts of our own.
A program says which messages each call sees, and in which order; how a message that was made before gets into the
next call is the business of the `Choreographer`: by its text, or by the keys and values that were computed for it.

What is known beforehand is prefilled, system prompts and questions alike: the header of a call is no more than who
speaks and how the answer begins.

Texts are chat markup (ChatML). **A turn is closed by the message behind it**: no message ends with ``<|im_end|>``, and
each begins with it but those that open a conversation, which are the system prompts. A decoded message ends before its
end-of-turn token, so this makes prefilled messages like decoded ones, and a system prompt with any others behind it,
in any order, is a well-formed conversation up to the turn that is being written.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from typing import Final, Protocol, Required, TypedDict, TypeVar, Unpack

from examples.choreography.problems import answer_in


class Message(Protocol):
    """What later calls can have for a parent."""

    @property
    def text(self) -> str:
        """What was generated, without the header; of a prefilled message, its text."""
        ...


M = TypeVar("M", bound=Message)


class Where(TypedDict, total=False):
    """Where messages stand in a call, in tokens, and what the call is named."""

    offsets: Sequence[int | None] | None
    """Of the parents; one that is omitted (None) means behind the parent before."""
    new_offset: int | None
    """Of the new message; None means behind the last parent."""
    name: str
    """Who speaks; it differs between the calls of a workflow."""


class How(Where):
    """How a message is generated, too."""

    max_tokens: Required[int]
    temperature: Required[float]
    seed: Required[int]


class Choreographer(Protocol[M]):
    """Makes messages."""

    async def prefill(self, text: str, parents: Sequence[M] = (), **where: Unpack[Where]) -> M:
        """A message of a given text, which sees all of its parents."""
        ...

    async def decode(self, header: str, parents: Sequence[M] = (), **how: Unpack[How]) -> M:
        """A message that begins with ``header``, which is not empty, and is generated from there on."""
        ...


class Workflow(Protocol):
    """What the programs here have in common."""

    def __call__(
        self,
        io: Choreographer[M],
        problem: str,
        *,
        max_tokens: int = ...,
        temperature: float = ...,
        seed: int = ...,
    ) -> Awaitable[str]:
        """Work on a problem; each call generates at most ``max_tokens``. Returns the text of the result."""
        ...


VERDICT_TOKENS: Final = 16
"""The most that a vote or a moderator's verdict may take: a number or a word, and what the model adds."""

_ANSWER: Final = "End with the answer as a number."
_PROPOSER: Final = (
    f"You solve word problems. Think step by step, in a few short sentences, and check each sum. {_ANSWER}"
)
_VOTER: Final = (
    "You compare solutions of a word problem. Look for the one whose steps follow from the text and whose sums are "
    "right, and name it by its number."
)
_FINISHER: Final = f"You write the final solution of a word problem, guided by a draft. Be brief. {_ANSWER}"
_ASK_VOTE: Final = "Which of these solutions is the best one? Name its number."
_ASK_FINAL: Final = "Now write the final solution."

DEBATERS: Final = {
    "Alice": "a careful engineer of the town, who writes down every quantity before she calculates",
    "Bob": "a quick shopkeeper, who estimates first and then checks the sum",
    "Carol": "a retired teacher, who looks for what the question really asks",
}
"""The agents of the parallel debate."""
_ASK_AGAIN: Final = (
    "{name}, you have read the answers of all. Say which steps you agree with, and answer again."
)

_AFFIRMATIVE: Final = (
    "You are the affirmative side in a debate about a word problem. You propose a solution and defend it. "
    f"{_ANSWER}"
)
_NEGATIVE: Final = (
    "You are the negative side in a debate about a word problem. You look for mistakes in what the affirmative side "
    f"says, and give a solution that differs where theirs is wrong. {_ANSWER}"
)
_MODERATOR: Final = (
    "You are the moderator of a debate about a word problem. You read both sides, say whether they agree, and in the "
    "end decide which answer is right."
)
_ASK_SIDE: Final = "{name} side, answer what was said."
_ASK_VERDICT: Final = "Do both sides agree on the answer? Say yes or no."
_ASK_DECISION: Final = "The debate is over. Which answer is right, and why?"


def opening(text: str) -> str:
    """The message that opens a conversation: a system prompt."""
    return f"<|im_start|>system\n{text}"


def turn(role: str, text: str) -> str:
    """A further turn, which closes the one before it; a header if the model continues the text."""
    return f"<|im_end|>\n<|im_start|>{role}\n{text}"


async def tree_of_thoughts(
    io: Choreographer[M],
    problem: str,
    *,
    branches: int = 8,
    votes: int = 4,
    max_tokens: int = 128,
    temperature: float = 0.7,
    seed: int = 0,
) -> str:
    """Drafts, votes on them, and a final solution that follows the best draft (breadth-first, one level)."""
    proposer, voter, finisher, task, which, finish = await asyncio.gather(
        io.prefill(opening(_PROPOSER), name="system of proposers"),
        io.prefill(opening(_VOTER), name="system of voters"),
        io.prefill(opening(_FINISHER), name="system of the finisher"),
        io.prefill(turn("user", problem), name="problem"),
        io.prefill(turn("user", _ASK_VOTE), name="question to voters"),
        io.prefill(turn("user", _ASK_FINAL), name="question to the finisher"),
    )
    drafts = await asyncio.gather(
        *(
            io.decode(
                turn("assistant", f"Solution {number}:"),
                [proposer, task],
                max_tokens=max_tokens,
                temperature=temperature,
                seed=_seed_of(seed, f"draft {number}"),
                name=f"draft {number}",
            )
            for number in range(1, branches + 1)
        )
    )
    ballots = await asyncio.gather(
        *(
            io.decode(
                turn("assistant", "The best one is Solution"),
                [voter, task, *drafts, which],
                max_tokens=min(max_tokens, VERDICT_TOKENS),
                temperature=temperature,
                seed=_seed_of(seed, f"vote {number}"),
                name=f"vote {number}",
            )
            for number in range(1, votes + 1)
        )
    )
    best = drafts[elected([ballot.text for ballot in ballots], branches) - 1]
    final = await io.decode(
        turn("assistant", "Final solution:"),
        [finisher, task, best, finish],
        max_tokens=max_tokens,
        temperature=temperature,
        seed=_seed_of(seed, "final"),
        name="final",
    )
    return final.text


async def parallel_debate(
    io: Choreographer[M],
    problem: str,
    *,
    agents: int = len(DEBATERS),
    rounds: int = 3,
    max_tokens: int = 128,
    temperature: float = 0.7,
    seed: int = 0,
) -> str:
    """All agents answer at once, read what the others and they themselves said, and answer again.

    Every agent has its own answer last, so the order differs from reader to reader. Returns an answer of the last round
    whose number most agents agree on.
    """
    if not 1 <= agents <= len(DEBATERS):
        raise ValueError(f"there are {len(DEBATERS)} agents to choose from, not {agents}")
    names = list(DEBATERS)[:agents]
    task, *prepared = await asyncio.gather(
        io.prefill(turn("user", problem), name="problem"),
        *(
            io.prefill(
                opening(
                    f"You are {name}, {DEBATERS[name]}. You discuss a word problem with others. {_ANSWER}"
                ),
                name=f"system of {name}",
            )
            for name in names
        ),
        *(
            io.prefill(turn("user", _ASK_AGAIN.format(name=name)), name=f"question to {name}")
            for name in names
        ),
    )
    systems, questions = prepared[:agents], prepared[agents:]
    said: list[M] = []
    for number in range(1, rounds + 1):
        said = list(
            await asyncio.gather(
                *(
                    io.decode(
                        turn("assistant", f"{name}:"),
                        [
                            *(system, task, *said[:own], *said[own + 1 :], *said[own : own + 1]),
                            *([questions[own]] if said else []),
                        ],
                        max_tokens=max_tokens,
                        temperature=temperature,
                        seed=_seed_of(seed, f"{name} {number}"),
                        name=f"{name} {number}",
                    )
                    for own, (name, system) in enumerate(zip(names, systems, strict=True))
                )
            )
        )
    return agreed([message.text for message in said])


async def iterative_debate(
    io: Choreographer[M],
    problem: str,
    *,
    rounds: int = 3,
    stop_early: bool = True,
    max_tokens: int = 128,
    temperature: float = 0.7,
    seed: int = 0,
) -> str:
    """Two sides take turns, and a moderator decides; all see the same growing history behind prompts of their own.

    After each round but the last the moderator says whether the sides agree; if so, and with ``stop_early``, the debate
    ends there.
    """
    affirmative, negative, moderator, task, to_affirmative, to_negative, agree, decide = await asyncio.gather(
        io.prefill(opening(_AFFIRMATIVE), name="system of the affirmative side"),
        io.prefill(opening(_NEGATIVE), name="system of the negative side"),
        io.prefill(opening(_MODERATOR), name="system of the moderator"),
        io.prefill(turn("user", problem), name="problem"),
        io.prefill(
            turn("user", _ASK_SIDE.format(name="Affirmative")), name="question to the affirmative side"
        ),
        io.prefill(turn("user", _ASK_SIDE.format(name="Negative")), name="question to the negative side"),
        io.prefill(turn("user", _ASK_VERDICT), name="question for a verdict"),
        io.prefill(turn("user", _ASK_DECISION), name="question for the decision"),
    )
    history: list[M] = []

    async def moderated(question: M, begin: str, most: int, name: str) -> str:
        message = await io.decode(
            turn("assistant", begin),
            [moderator, task, *history, question],
            max_tokens=most,
            temperature=temperature,
            seed=_seed_of(seed, name),
            name=name,
        )
        return message.text

    for number in range(1, rounds + 1):
        for side, system, question in (
            ("Affirmative", affirmative, to_affirmative),
            ("Negative", negative, to_negative),
        ):
            spoken = await io.decode(
                turn("assistant", f"{side} side:"),
                [system, task, *history, *([question] if history else [])],
                max_tokens=max_tokens,
                temperature=temperature,
                seed=_seed_of(seed, f"{side} {number}"),
                name=f"{side} {number}",
            )
            history.append(spoken)
        if number < rounds:
            verdict = await moderated(agree, "Verdict:", min(max_tokens, VERDICT_TOKENS), f"verdict {number}")
            if stop_early and re.match(r"\W*yes\b", verdict, re.IGNORECASE):
                break
    return await moderated(decide, "Decision:", max_tokens, "decision")


WORKFLOWS: Final[Mapping[str, Workflow]] = {
    "tot": tree_of_thoughts,
    "parallel": parallel_debate,
    "iterative": iterative_debate,
}
"""By their short names."""


def elected(ballots: Sequence[str], candidates: int) -> int:
    """The candidate, from 1 on, that most ballots name first; the lowest of several, and 1 if none is named."""
    named = Counter[int]()
    for ballot in ballots:
        number = next((int(found) for found in re.findall(r"\d+", ballot)), 0)
        if 1 <= number <= candidates:
            named[number] += 1
    return max(range(1, candidates + 1), key=lambda candidate: (named[candidate], -candidate))


def agreed(answers: Sequence[str]) -> str:
    """The first of those answers whose number most of them have."""
    numbers = [answer_in(answer) for answer in answers]
    votes = Counter(number for number in numbers if number is not None)
    return max(
        zip(answers, numbers, strict=True), key=lambda each: votes[each[1]] if each[1] is not None else 0
    )[0]


def _seed_of(seed: int, name: str) -> int:
    """A seed of its own for each call of a workflow, below 2**31."""
    return zlib.crc32(f"{seed} {name}".encode()) & 0x7FFFFFFF
