"""What a model knows: its chances of the right answers among those that a grammar would admit."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor

from bench.training.example import Question
from bench.training.lora import body_of, padded, tokens


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
    right, first, chance, entropy, token_entropy = [], [], [], [], []
    for question in questions:
        options = [tokens(tokenizer, option) for option in question.options]
        logprobs, entropies = weigh(model, tokens(tokenizer, question.prompt), options, model.device)
        weights = logprobs.softmax(0).cpu()
        is_right = torch.tensor([option in question.right for option in question.options])
        right.append(weights[is_right].sum().item())
        first.append(bool(is_right[weights.argmax()]))
        chance.append(len(question.right) / len(question.options))
        entropy.append(torch.special.entr(weights).sum().item())
        token_entropy.append(entropies[int(is_right.nonzero()[0])].mean().item())
    return Grade(
        questions=len(questions),
        chance=fmean(chance),
        right=fmean(right),
        first=fmean(first),
        entropy_nats=fmean(entropy),
        token_entropy_nats=fmean(token_entropy),
    )


@torch.inference_mode()
def weigh(
    model: Any, prompt: Sequence[int], options: Sequence[Sequence[int]], device: torch.device
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """How likely each option is behind a prompt, and how open it was at each of its tokens.

    The prompt is read once for all options. Returns the log-probabilities of the options, [n], and for each option
    the entropies in nats of the whole distributions that its tokens are drawn from, [length]; all float32.
    """
    body, head = body_of(model), model.get_output_embeddings()
    read = body(torch.tensor([list(prompt)], device=device), use_cache=True)
    hidden = read.last_hidden_state[:, -1:].expand(len(options), -1, -1)
    written = padded([option[:-1] for option in options], device)
    if written.shape[1]:
        read.past_key_values.batch_repeat_interleave(len(options))
        then = body(written, past_key_values=read.past_key_values, use_cache=True)
        hidden = torch.cat([hidden, then.last_hidden_state], dim=1)
    lengths = [len(option) for option in options]
    there = torch.arange(max(lengths), device=device) < torch.tensor(lengths, device=device)[:, None]
    logprobs = head(hidden[there]).float().log_softmax(-1)
    targets = torch.tensor([token for option in options for token in option], device=device)
    of_targets = logprobs.gather(1, targets[:, None])[:, 0]
    entropies = -(logprobs.exp() * logprobs).sum(-1)
    return torch.stack([each.sum() for each in of_targets.split(lengths)]), entropies.split(lengths)
