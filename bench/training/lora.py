"""Training a LoRA adapter on lessons, with `peft`.

Only answers are trained on, and they are tokenised apart from their prompts, as a server does that is sent a prompt
and writes the answer itself.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from bench.training.example import Example

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The layers that get an adapter: all that SGLang serves one for, in a Llama."""

_SORTED_STEPS: Final = 8
"""Of so many steps the lessons are sorted by length together."""


@dataclass(frozen=True)
class Settings:
    """How long, and how fast."""

    steps: int
    batch: int
    """Lessons per step."""
    tokens: int | None = None
    """Tokens per step, at the most, padding among them; then a step may have fewer lessons than `batch`."""
    minutes: float | None = None
    """How long it may take. If that is over before the steps are, the rate falls with the time instead."""
    rate: float = 1e-3
    """Peak learning rate; it rises over the first twentieth of the steps and then falls to zero along a cosine."""
    rank: int = 16
    seed: int = 0


@dataclass(frozen=True)
class Encoded:
    """A lesson in tokens."""

    prompt: list[int]
    answers: list[list[int]]
    then: Encoded | None = None

    @property
    def longest(self) -> int:
        """How many tokens it has, with the longest of its answers."""
        here = len(self.prompt) + max(map(len, self.answers))
        return here if self.then is None else here + self.then.longest

    def drawn(self, rng: random.Random) -> tuple[list[int], list[int]]:
        """Its text with one of the answers, and the places in it that are trained on."""
        answer = rng.choice(self.answers)
        text = [*self.prompt, *answer]
        places = list(range(len(self.prompt), len(text)))
        if self.then is not None:
            rest, further = self.then.drawn(rng)
            places += [len(text) + place for place in further]
            text += rest
        return text, places


def tokens(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a prompt or an answer, with no special ones but those that it spells."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def encode(tokenizer: Any, examples: Sequence[Example]) -> list[Encoded]:
    """Lessons in tokens. All texts are handed to the tokenizer at once, which then uses all processors."""
    texts = list(dict.fromkeys(text for example in examples for text in _texts(example)))
    ids = dict(zip(texts, tokenizer(texts, add_special_tokens=False)["input_ids"], strict=True))

    def encoded(example: Example) -> Encoded:
        return Encoded(
            ids[example.prompt],
            [ids[answer] for answer in example.answers],
            None if example.then is None else encoded(example.then),
        )

    return [encoded(example) for example in examples]


def _texts(example: Example) -> Iterator[str]:
    yield from (example.prompt, *example.answers)
    if example.then is not None:
        yield from _texts(example.then)


def train(
    base: Any, lessons: Sequence[Encoded], settings: Settings, say: Callable[[str], None]
) -> tuple[Any, list[float]]:
    """Train an adapter of a causal language model; returns the model with it, and each step's loss in nats per token.

    The base is frozen, wrapped, and stays on its device, in its type; the adapter is trained in float32. Raises
    `ValueError` when there are no lessons, or one is longer than all the tokens of a step.
    """
    from peft import LoraConfig, get_peft_model
    from peft.helpers import disable_input_dtype_casting

    if not lessons:
        raise ValueError("there are no lessons")
    torch.manual_seed(settings.seed)
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
    device = base.device
    rng = random.Random(settings.seed)

    def loss(numbers: list[int]) -> Tensor:
        drawn = [lessons[number].drawn(rng) for number in numbers]
        # Else each layer's input is made float32 for the adapter, and by autocast bfloat16 again.
        with (
            disable_input_dtype_casting(model),
            torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"),
        ):
            return -logprobs_at(model, drawn, device).mean()

    losses = descend(adapter, [lesson.longest for lesson in lessons], loss, settings, rng, say)
    model.eval()
    return model, losses


def descend(
    adapter: Sequence[torch.nn.Parameter],
    lengths: Sequence[int],
    loss_of: Callable[[list[int]], Tensor],
    settings: Settings,
    rng: random.Random,
    say: Callable[[str], None],
    watch: Callable[[int], None] | None = None,
) -> list[float]:
    """Train parameters along the gradient of a loss of some lessons, which are named by their numbers; returns each
    step's loss.

    ``lengths`` are the lessons' tokens; ``rng`` draws who goes into which step; ``watch`` is called before the first
    step, at each twentieth of the way, and behind the last step, with the number of steps. Raises `ValueError` as
    `batches` does.
    """
    optimiser = torch.optim.AdamW(adapter, lr=settings.rate, weight_decay=0.0)
    chosen = batches(lengths, settings, rng)
    losses: list[float] = []
    limit_s = math.inf if settings.minutes is None else 60 * settings.minutes
    told = -1
    began = time.monotonic()
    for step in count():
        done = max(step / settings.steps, (time.monotonic() - began) / limit_s)
        if watch is not None and (done >= 1 or int(20 * done) > told):
            watch(step)
        if done >= 1:
            break
        for group in optimiser.param_groups:
            group["lr"] = settings.rate * _rate(done * settings.steps, settings.steps)
        loss = loss_of(next(chosen))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(adapter, 1.0)
        optimiser.step()
        losses.append(loss.item())
        if int(20 * done) > told:
            told = int(20 * done)
            say(f"{5 * told}%, step {step + 1}: loss {sum(losses[-20:]) / len(losses[-20:]):.4f}")
    return losses


def batches(lengths: Sequence[int], settings: Settings, rng: random.Random) -> Iterator[list[int]]:
    """Numbers of lessons for one step after the other, without end; each lesson once before any comes again.

    With a bound on tokens, lessons of about one length go together, so that little is padding. Only some steps'
    lessons are sorted at a time: all that are equally long are often about the same thing. Raises `ValueError` when a
    lesson is longer than the bound.
    """
    if settings.tokens is not None and max(lengths) > settings.tokens:
        raise ValueError(f"a lesson has {max(lengths)} tokens, and a step {settings.tokens}")
    order: list[int] = []
    many = settings.batch if settings.tokens is None else _SORTED_STEPS * settings.batch
    while True:
        while len(order) < many:
            order += rng.sample(range(len(lengths)), len(lengths))
        some, order = order[:many], order[many:]
        if settings.tokens is None:
            yield some
        else:
            cut = _cut(sorted(some, key=lengths.__getitem__), lengths, settings.batch, settings.tokens)
            yield from rng.sample(cut, len(cut))


def _cut(order: Sequence[int], lengths: Sequence[int], batch: int, tokens: int) -> list[list[int]]:
    """Lessons, sorted by length, in steps of at most so many lessons and tokens."""
    cut: list[list[int]] = [[]]
    for number in order:
        if len(cut[-1]) == batch or (len(cut[-1]) + 1) * lengths[number] > tokens:
            cut.append([])
        cut[-1].append(number)
    return cut


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


def logprobs_at(
    model: Any, texts: Sequence[tuple[Sequence[int], Sequence[int]]], device: torch.device
) -> Tensor:
    """Log-probability of the tokens at some places of each text behind what is before them, [all places], float32.

    A text is its tokens and the places, none of which is the first token's.
    """
    ids = padded([text for text, _ in texts], device)
    at = [(row, place) for row, (_, places) in enumerate(texts) for place in places]
    rows, places = torch.tensor(at, device=device).unbind(1)
    # The vocabulary is large: hidden states of other places never meet it.
    hidden = body_of(model)(ids, use_cache=False).last_hidden_state[rows, places - 1]
    logits: Tensor = model.get_output_embeddings()(hidden)
    return logits.float().log_softmax(-1).gather(1, ids[rows, places][:, None])[:, 0]


def body_of(model: Any) -> Any:
    """A causal language model without its output layer, with the adapter if it has one."""
    return model.get_base_model().model if hasattr(model, "get_base_model") else model.model


def padded(texts: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Texts as one tensor, [n, longest], padded at their ends: nothing before can see it."""
    longest = max(map(len, texts))
    return torch.tensor(
        [[*text, *[0] * (longest - len(text))] for text in texts], dtype=torch.long, device=device
    )


def _rate(step: float, steps: int) -> float:
    warm = max(1, steps // 20)
    if step < warm:
        return min(1.0, (step + 1) / warm)
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))
