#!/usr/bin/env python3
"""Train the role adapters of the embedded model: ``.venv/bin/python scripts/train_roles.py --role ROLE --out DIR``.

Writes the adapter in PEFT's format and ``metrics.json`` beside it: what was taught, how the loss fell, and what the
model knows of held-out questions before and after, by their kind. On one GPU a role takes minutes, and with
``--minutes`` no more than so many; ``--tiny`` shows on a CPU that everything works, and teaches nothing to speak of.

``--role choreography`` is another kind: the model runs ``examples.choreography.workflows`` on whole prompts, and the
adapter learns to say the same when messages are encoded once and reused. Then ``metrics.json`` says how near
it comes on held-out problems. This needs torch and transformers only; ``--minutes`` bounds the training alone, and the
workflows before it take about as long.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import quantiles
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.training import game24, rtl
from bench.training.example import Question
from bench.training.lora import Encoded, Settings, encode, save, train
from examples.choreography.problems import problems
from examples.choreography.workflows import WORKFLOWS
from examples.game24 import prompts
from examples.game24.puzzles import TEST_SET, TUNING_SET, puzzles
from examples.game24.rules import Numbers, legal_steps, successors

FURTHER = {"proposer": (25_000, 32), "valuer": (9_000, 24)}
"""Puzzles beyond the game's own, and their largest number. The proposer is to find steps in puzzles that it never met,
and finds the more the more it has met; the valuer is to know by heart what can follow a step."""
TINY_FURTHER = (20, 24)
TIMES = 3
"""In how many ways each bug is phrased."""
LONGEST = 2_000
"""Tokens of a lesson, which is left out if it has more."""

CHOREOGRAPHY = "choreography"

ROLES = {
    # About eleven times through all puzzles: at thirty it knew them by heart, and found fewer steps in others.
    "proposer": Settings(steps=1600, batch=512, rate=2e-3),
    "valuer": Settings(steps=2400, batch=256, rate=2e-3),
    # Its lessons are a hundred times as long.
    "patcher": Settings(steps=700, batch=32, tokens=32_768),
    # Up to eight times through all traces, as in the paper.
    CHOREOGRAPHY: Settings(steps=400, batch=16, tokens=24_576, rate=1e-3),
}
TINY = {
    "proposer": Settings(steps=20, batch=8, rank=4),
    "valuer": Settings(steps=20, batch=8, rank=4),
    "patcher": Settings(steps=2, batch=1, rank=4),
    CHOREOGRAPHY: Settings(steps=3, batch=1, rank=4),
}


class Traced(NamedTuple):
    """How much is recorded for choreography."""

    taught: int
    """Problems that every workflow is run on for lessons."""
    to_choose_by: int
    """Further ones, by which the best step is chosen."""
    held_out: int
    """Still others, to ask about."""
    max_tokens: int
    """What a message may take."""
    together: int
    """Tokens, with padding, of what is generated together."""


TRACED = Traced(300, 6, 40, 128, 400_000)
TINY_TRACED = Traced(2, 1, 1, 10, 4_000)


class Course(NamedTuple):
    """All that there is to a role but the model."""

    lessons: list[Encoded]
    questions: dict[str, list[Question]]
    """By their kind."""
    about: dict[str, Any]
    """What the metrics say of the lessons."""


def main(argv: Sequence[str] | None = None) -> None:
    options = arguments(argv)
    chosen = {name: getattr(options, name) for name in Settings.__dataclass_fields__}
    settings = replace(
        (TINY if options.tiny else ROLES)[options.role],
        **{name: value for name, value in chosen.items() if value is not None},
    )

    from transformers import AutoTokenizer

    if options.base is None:
        from hive.server.embedded_model import ensure_embedded_model

        options.base = ensure_embedded_model()
    tokenizer = AutoTokenizer.from_pretrained(options.base)
    made = (distilled if options.role == CHOREOGRAPHY else taught)(options, settings, tokenizer)
    metrics: dict[str, Any] = {"role": options.role, "settings": vars(settings), **made}
    (options.out / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")


def base_model(folder: Path) -> Any:
    """The model that is to be trained, on a GPU if there is one."""
    import torch
    from transformers import AutoModelForCausalLM

    cuda = torch.cuda.is_available()
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16 if cuda else torch.float32).to(
        "cuda" if cuda else "cpu"
    )


def taught(options: argparse.Namespace, settings: Settings, tokenizer: Any) -> dict[str, Any]:
    """Train a role on lessons with right answers; returns its metrics."""
    from bench.training.quiz import grade

    began = time.monotonic()
    rng = random.Random(settings.seed)
    if options.role == "patcher":
        course = patching(tokenizer, rng, tiny=options.tiny)
    else:
        course = playing(options.role, tokenizer, rng, tiny=options.tiny)
    # Afterwards, for lessons are made in processes that are forked.
    base = base_model(options.base)
    say(f"{len(course.lessons):,} lessons after {time.monotonic() - began:.0f} s")

    def ask(model: Any, when: str) -> dict[str, Any]:
        started = time.monotonic()
        grades = {kind: grade(model, tokenizer, questions) for kind, questions in course.questions.items()}
        for kind, found in grades.items():
            say(f"{when}, {kind}: {found}")
        say(f"asked for {time.monotonic() - started:.0f} s")
        return {kind: found.model_dump() for kind, found in grades.items()}

    before = ask(base, "before")
    started = time.monotonic()
    model, losses = train(base, course.lessons, settings, say)
    seconds = time.monotonic() - started
    after = ask(model, "after")
    save(model, options.out, options.base_name)
    return {
        "lessons": len(course.lessons),
        **course.about,
        **training(losses, seconds),
        "before": before,
        "after": after,
    }


def distilled(options: argparse.Namespace, settings: Settings, tokenizer: Any) -> dict[str, Any]:
    """Train choreographed workflows to say what they say on whole prompts; returns the metrics."""
    from bench.training import low_rank
    from bench.training.mimicry import fidelity, teach
    from bench.training.traces import record, size_of

    amounts = TINY_TRACED if options.tiny else TRACED
    if options.problems is not None:
        amounts = amounts._replace(taught=options.problems)
    model = base_model(options.base)
    ends = list(itertools.accumulate((amounts.taught, amounts.to_choose_by, amounts.held_out)))
    asked = [problem.text for problem in problems(ends[-1], seed=settings.seed)]
    lessons, to_choose_by, held_out = [], [], {}
    began = time.monotonic()
    for name in options.workflows:
        traces = record(
            model,
            tokenizer,
            WORKFLOWS[name],
            asked,
            max_tokens=amounts.max_tokens,
            batch_tokens=amounts.together,
            seed=settings.seed,
        )
        say(f"{name}: {len(traces):,} traces after {time.monotonic() - began:.0f} s")
        lessons += traces[: ends[0]]
        to_choose_by += traces[ends[0] : ends[1]]
        held_out[name] = traces[ends[1] :]
    recorded = time.monotonic() - began

    def ask(when: str) -> dict[str, Any]:
        grades = {name: fidelity(model, traces) for name, traces in held_out.items()}
        for name, found in grades.items():
            say(f"{when}, {name}: {found}")
        return {name: asdict(found) for name, found in grades.items()}

    before = ask("before")
    started = time.monotonic()
    made = teach(model, lessons, to_choose_by, settings, say)
    seconds = time.monotonic() - started
    say(f"kept: the adapter after {made.kept} steps")
    after = ask("after")
    low_rank.save(model, options.out, options.base_name)
    return {
        "workflows": options.workflows,
        "traces": len(lessons),
        "max_tokens": amounts.max_tokens,
        "tokens_of_a_trace": quantiles([size_of(trace) for trace in lessons], n=10),
        "seconds_of_workflows": round(recorded, 1),
        **training(made.losses, seconds),
        "validation": {steps: round(found, 5) for steps, found in made.validation.items()},
        "kept": made.kept,
        "before": before,
        "after": after,
    }


def training(losses: Sequence[float], seconds: float) -> dict[str, Any]:
    """What metrics say of it."""
    return {
        "steps": len(losses),
        "seconds": round(seconds, 1),
        "loss": [round(loss, 4) for loss in losses[:: max(1, len(losses) // 100)]],
    }


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--role", choices=tuple(ROLES), required=True)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--base", type=Path, metavar="DIR", help="the model (default: the embedded one)")
    parser.add_argument(
        "--base-name",
        default="HuggingFaceTB/SmolLM2-135M-Instruct",
        metavar="NAME",
        help="what the adapter says that it is for (default: the embedded model)",
    )
    for name, kind, meaning in (
        ("steps", int, "how many (default: the role's)"),
        ("batch", int, "lessons per step (default: the role's)"),
        ("tokens", int, "tokens per step, at the most (default: the role's)"),
        ("minutes", float, "time that training may take (default: as long as the steps take)"),
        ("rate", float, "peak learning rate (default: the role's)"),
        ("rank", int, "of the adapter (default: 16)"),
        ("seed", int, "same seed, same lessons (default: 0)"),
    ):
        parser.add_argument(f"--{name}", type=kind, metavar=name[0].upper(), help=meaning)
    parser.add_argument(
        "--workflows",
        nargs="+",
        choices=tuple(WORKFLOWS),
        metavar="NAME",
        help=f"for choreography, which ones one adapter is trained for (default: {' '.join(WORKFLOWS)})",
    )
    parser.add_argument(
        "--problems",
        type=int,
        metavar="N",
        help=f"for choreography, how many each workflow is run on for lessons (default: {TRACED.taught})",
    )
    parser.add_argument("--tiny", action="store_true", help="few lessons, few steps")
    options = parser.parse_args(argv)
    for name in ("steps", "batch", "tokens", "minutes", "rate", "rank", "problems"):
        if (given := getattr(options, name)) is not None and not given > 0:
            parser.error(f"--{name} must be above 0, got {given}")
    if options.role != CHOREOGRAPHY:
        for name in ("workflows", "problems"):
            if getattr(options, name) is not None:
                parser.error(f"--{name} is for --role {CHOREOGRAPHY}")
    options.workflows = list(dict.fromkeys(options.workflows or WORKFLOWS))
    # At once, and not when the lessons are made.
    if options.role != CHOREOGRAPHY and importlib.util.find_spec("peft") is None:
        parser.error("peft is not installed. Run: uv pip install 'hive[train]'")
    return options


def playing(role: str, tokenizer: Any, rng: random.Random, *, tiny: bool) -> Course:
    """A role in Game of 24; it is asked about puzzles of the test set and, to choose settings by, of the tuning set."""
    positions = list(
        game24.positions_of(game24.taught_puzzles(*(TINY_FURTHER if tiny else FURTHER[role]), rng))
    )
    about = {"positions_of_the_test_set_met": game24.met(positions)}
    asked = {
        where: [puzzle.numbers for puzzle in puzzles(ranks.start, ranks.start + 5 if tiny else ranks.stop)]
        for where, ranks in (("the test set", TEST_SET), ("the tuning set", TUNING_SET))
    }
    if role == "proposer":
        return Course(
            encode(tokenizer, game24.proposals(positions)),
            {f"steps of {where}": [step_from(numbers) for numbers in some] for where, some in asked.items()},
            about,
        )
    # A position after a random step: so most of them are hopeless, as in a search.
    return Course(
        encode(tokenizer, game24.judgements(positions, rng)),
        {
            f"worths in {where}": [
                worth_of(rng.choice(successors(numbers))) for numbers in some for _ in range(4)
            ]
            for where, some in asked.items()
        },
        about,
    )


def step_from(numbers: Numbers) -> Question:
    """Which step to take."""
    return Question(
        prompts.propose_role(numbers),
        tuple(f"{step} =" for step in legal_steps(numbers)),
        frozenset(f"{step} =" for step in game24.good_steps(numbers)),
    )


def worth_of(numbers: Numbers) -> Question:
    """What a position is worth."""
    return Question(prompts.value_role(numbers), tuple(prompts.WORTH), frozenset([game24.verdict(numbers)]))


def patching(tokenizer: Any, rng: random.Random, *, tiny: bool) -> Course:
    """The Patcher; it is asked about designs that are held out, and about other bugs of those it was taught."""
    chat = rtl.Chat.of(tokenizer)
    unknown, known = rtl.asked(6, rng)
    bugs = list(rtl.taught())
    if tiny:
        # Short ones: a CPU reads some hundred tokens a second.
        bugs, unknown = (
            sorted(some, key=lambda each: len(each.bug.source))[:few]
            for some, few in ((bugs, 10), (unknown, 1))
        )
        known = []
    encoded = encode(tokenizer, rtl.lessons(bugs, chat, TIMES, rng))
    lessons = [lesson for lesson in encoded if lesson.longest <= LONGEST]
    questions = {}
    for where, some in (("held-out designs", unknown), ("known designs", known)):
        if some:
            questions[f"lines of {where}"], questions[f"texts of {where}"] = rtl.questions(some, chat)
    about = {
        "bugs": len(bugs),
        "held_out_designs": sorted(rtl.HELD_OUT),
        "lessons_left_out": len(encoded) - len(lessons),
        "tokens_of_a_lesson": quantiles([lesson.longest for lesson in lessons], n=10),
    }
    return Course(lessons, questions, about)


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
