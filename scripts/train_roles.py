#!/usr/bin/env python3
"""Train the role adapters of the embedded model: ``.venv/bin/python scripts/train_roles.py --role ROLE --out DIR``.

Writes the adapter in PEFT's format and ``metrics.json`` beside it: what was taught, how the loss fell, and what the
model knows of held-out questions before and after. On one GPU a role takes minutes; ``--tiny`` shows on a CPU that
everything works, and teaches nothing to speak of.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.game24 import prompts
from bench.game24.puzzles import puzzles
from bench.game24.rules import Numbers, legal_steps, successors
from bench.roles import game24
from bench.roles.example import Example
from bench.roles.lora import Settings, save, train
from bench.roles.quiz import Question, grade

FURTHER, TINY_FURTHER = 8_000, 20
"""Puzzles beyond the game's own."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--role", choices=("proposer", "valuer"), required=True)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--base", type=Path, metavar="DIR", help="the model (default: the embedded one)")
    parser.add_argument(
        "--base-name",
        default="HuggingFaceTB/SmolLM2-135M-Instruct",
        metavar="NAME",
        help="what the adapter says that it is for (default: the embedded model)",
    )
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tiny", action="store_true", help="few lessons, few steps")
    options = parser.parse_args(argv)

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if options.base is None:
        from hive.embedded_model import ensure_embedded_model

        options.base = ensure_embedded_model()
    began = time.monotonic()
    cuda = torch.cuda.is_available()
    base = AutoModelForCausalLM.from_pretrained(
        options.base, dtype=torch.bfloat16 if cuda else torch.float32
    ).to("cuda" if cuda else "cpu")
    tokenizer = AutoTokenizer.from_pretrained(options.base)
    rng = random.Random(options.seed)
    positions = list(
        game24.positions_of(game24.taught_puzzles(TINY_FURTHER if options.tiny else FURTHER, rng))
    )
    lessons, questions = of_role(options.role, positions, rng, asked=5 if options.tiny else 100)
    settings = Settings(
        steps=20 if options.tiny else options.steps,
        batch=8 if options.tiny else options.batch,
        rate=options.rate,
        rank=4 if options.tiny else options.rank,
        seed=options.seed,
    )
    say(f"{len(lessons):,} lessons after {time.monotonic() - began:.0f} s")
    before = grade(base, tokenizer, questions)
    say(f"before: {before}")
    taught = time.monotonic()
    model, losses = train(base, tokenizer, lessons, settings, say)
    seconds = time.monotonic() - taught
    after = grade(model, tokenizer, questions)
    say(f"after: {after}")
    save(model, options.out, options.base_name)
    metrics: dict[str, Any] = {
        "role": options.role,
        "settings": vars(settings),
        "lessons": len(lessons),
        "positions_of_the_test_set_met": game24.met(positions),
        "seconds": round(seconds, 1),
        "loss": [round(loss, 4) for loss in losses[:: max(1, len(losses) // 100)]],
        "before": before.model_dump(),
        "after": after.model_dump(),
    }
    (options.out / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")


def of_role(
    role: str, positions: Sequence[Numbers], rng: random.Random, *, asked: int
) -> tuple[list[Example], list[Question]]:
    """Lessons, and questions about so many puzzles of the test set."""
    test = [puzzle.numbers for puzzle in puzzles(900, 900 + asked)]
    if role == "proposer":
        return game24.proposals(positions), [
            Question(
                prompts.propose_role(numbers),
                tuple(f"{step} =" for step in legal_steps(numbers)),
                frozenset(f"{step} =" for step in game24.good_steps(numbers)),
            )
            for numbers in test
        ]
    after = [rng.choice(successors(numbers)) for numbers in test for _ in range(4)]
    return game24.judgements(positions, rng), [
        Question(prompts.value_role(numbers), tuple(prompts.WORTH), frozenset([game24.verdict(numbers)]))
        for numbers in after
    ]


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
