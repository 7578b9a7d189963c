"""Training a LoRA adapter on lessons, with `peft`.

Only answers are trained on, and they are tokenised apart from their prompts, as a server does that is sent a prompt
and writes the answer itself.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.roles.example import Example

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The layers that get an adapter: all that SGLang serves one for, in a Llama."""


@dataclass(frozen=True)
class Settings:
    """How long, and how fast."""

    steps: int
    batch: int
    """Lessons per step."""
    rate: float = 1e-3
    """Peak learning rate; it rises over the first twentieth of the steps and then falls to zero along a cosine."""
    rank: int = 16
    seed: int = 0


@dataclass(frozen=True)
class Encoded:
    """A lesson in tokens."""

    prompt: list[int]
    answers: list[list[int]]


def tokens(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a prompt or an answer, without special ones."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def encode(tokenizer: Any, example: Example) -> Encoded:
    """A lesson in tokens."""
    return Encoded(
        tokens(tokenizer, example.prompt), [tokens(tokenizer, answer) for answer in example.answers]
    )


def train(
    base: Any, tokenizer: Any, examples: Sequence[Example], settings: Settings, say: Callable[[str], None]
) -> tuple[Any, list[float]]:
    """Train an adapter of a causal language model; returns the model with it, and the loss of each step in nats.

    The base is frozen, wrapped, and stays on its device, in its type; the adapter is trained in float32.

    Raises:
        ValueError: when there are no lessons.
    """
    from peft import LoraConfig, get_peft_model

    if not examples:
        raise ValueError("there are no lessons")
    torch.manual_seed(settings.seed)
    rng = random.Random(settings.seed)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=2 * settings.rank,
        target_modules=list(TARGETS),
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(base, config)
    model.train()
    adapter = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in adapter:
        parameter.data = parameter.data.float()
    optimiser = torch.optim.AdamW(adapter, lr=settings.rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _rate(step, settings.steps))
    lessons = [encode(tokenizer, example) for example in examples]
    device = base.device
    order: list[int] = []
    losses: list[float] = []
    for step in range(settings.steps):
        while len(order) < settings.batch:
            order += rng.sample(range(len(lessons)), len(lessons))
        chosen, order = order[: settings.batch], order[settings.batch :]
        pairs = [(lessons[number].prompt, rng.choice(lessons[number].answers)) for number in chosen]
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = -answer_logprobs(model, pairs, device).sum() / sum(len(answer) for _, answer in pairs)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(adapter, 1.0)
        optimiser.step()
        schedule.step()
        losses.append(loss.item())
        if (step + 1) % max(1, settings.steps // 20) == 0:
            say(f"step {step + 1} of {settings.steps}: loss {sum(losses[-20:]) / len(losses[-20:]):.4f}")
    model.eval()
    return model, losses


def save(model: Any, folder: Path, base_name: str) -> None:
    """Write the adapter in PEFT's format, in bfloat16: half the size, and what it is served in.

    ``base_name`` is what the adapter says of its base, which has a folder here that means nothing elsewhere.
    """
    for config in model.peft_config.values():
        config.base_model_name_or_path = base_name
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.to(torch.bfloat16)
    model.save_pretrained(folder)
    # A form to be filled in by hand: what is known is in the metrics.
    (folder / "README.md").unlink(missing_ok=True)


def answer_logprobs(
    model: Any, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], device: torch.device
) -> Tensor:
    """Log-probability of each answer behind its prompt, [n], float32."""
    chosen, owner = _answer_logits(model, pairs, device)
    targets = torch.tensor([token for _, answer in pairs for token in answer], device=device)
    each = chosen.float().log_softmax(-1).gather(1, targets[:, None])[:, 0]
    return torch.zeros(len(pairs), device=device).index_add(0, owner, each)


def answer_entropies(
    model: Any, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], device: torch.device
) -> Tensor:
    """Entropy in nats of the whole distribution at each token of each answer, [sum of lengths], float32."""
    chosen, _ = _answer_logits(model, pairs, device)
    logprobs = chosen.float().log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)


def _answer_logits(
    model: Any, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Logits that each answer token is drawn from, [sum of lengths, vocabulary], and whose answer each is, [sum]."""
    texts = [[*prompt, *answer] for prompt, answer in pairs]
    longest = max(map(len, texts))
    # Padding at the end: nothing before it can see it.
    ids = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts], device=device)
    rows = [
        (row, place)
        for row, (prompt, answer) in enumerate(pairs)
        for place in range(len(prompt), len(prompt) + len(answer))
    ]
    owner = torch.tensor([row for row, _ in rows], device=device)
    before = torch.tensor([place - 1 for _, place in rows], device=device)
    # The vocabulary is large: hidden states of other positions never meet it.
    hidden = model.get_base_model().model(ids) if hasattr(model, "get_base_model") else model.model(ids)
    head = model.get_output_embeddings()
    logits: Tensor = head(hidden.last_hidden_state[owner, before])
    return logits, owner


def _rate(step: int, steps: int) -> float:
    warm = max(1, steps // 20)
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))
