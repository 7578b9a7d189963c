"""What a model knows: its chances of the right answers among those that a grammar would admit."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel

from bench.roles.lora import answer_entropies, answer_logprobs, tokens


class Question(NamedTuple):
    """A prompt with its possible answers."""

    prompt: str
    options: tuple[str, ...]
    right: frozenset[str]
    """Those of the options that are right; at least one."""


class Grade(BaseModel):
    """Means over some questions."""

    questions: int
    chance: float
    """Of a right answer, when all options are equally likely."""
    right: float
    """Of a right answer, when options are drawn as the model weighs them."""
    first: float
    """Share of questions whose likeliest option is right."""
    entropy_nats: float
    """Of the options, as the model weighs them."""
    token_entropy_nats: float
    """Of the whole vocabulary, at each token of a right answer."""


def grade(model: Any, tokenizer: Any, questions: Sequence[Question]) -> Grade:
    """Ask them all, with exact probabilities. Options are compared by the probability of their whole text."""
    device = model.device
    right, first, chance, entropy, token_entropy = [], [], [], [], []

    with torch.inference_mode():
        for question in questions:
            prompt = tokens(tokenizer, question.prompt)
            pairs = [(prompt, tokens(tokenizer, option)) for option in question.options]
            weights = answer_logprobs(model, pairs, device).softmax(0).cpu()
            is_right = torch.tensor([option in question.right for option in question.options])
            right.append(weights[is_right].sum().item())
            first.append(bool(is_right[weights.argmax()]))
            chance.append(len(question.right) / len(question.options))
            entropy.append(torch.special.entr(weights).sum().item())
            a_right_one = pairs[int(is_right.nonzero()[0])]
            token_entropy.append(answer_entropies(model, [a_right_one], device).mean().item())
    return Grade(
        questions=len(questions),
        chance=fmean(chance),
        right=fmean(right),
        first=fmean(first),
        entropy_nats=fmean(entropy),
        token_entropy_nats=fmean(token_entropy),
    )
