"""Teaching a model to say under choreographed attention what it said under the baseline, and how well it does.

The distillation of the Prompt Choreography paper (section 3.2): choreographed calls are forced to say what a trace has,
and their loss goes down along its gradient through the whole workflow.

Where the paper takes the log-loss of the tokens that were drawn, we take the divergence from the distribution that they
were drawn from.  In the mean over all that could have been drawn both have the same gradient; but a few hundred traces
are learned by heart, and a small model that was taught the drawn tokens was further from the baseline in the end than
before (on problems held out KL 0.14 after eleven times through the traces, 0.04 before).  As in the paper's section 4.1
what is kept is the adapter of the step that did best on problems of their own.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.training.choreographed import logits, plan
from bench.training.lora import Settings, descend
from bench.training.low_rank import adapt, without
from bench.training.traces import Trace, read_whole, size_of


@dataclass(frozen=True)
class Likeness:
    """How close a model is to the one that made the traces: means over the tokens of their outputs."""

    nats: float
    """Log-loss of the output tokens."""
    kl_nats: float
    """KL divergence from the distribution that the token was drawn from to the model's."""
    same_first: float
    """Share of the tokens at which both think the same one the likeliest."""


@dataclass(frozen=True)
class Fidelity:
    """How a model does on traces, in both ways to run a workflow."""

    traces: int
    tokens: int
    """Of the outputs."""
    baseline_nats: float
    """Log-loss of the model that made the traces, reading whole prompts: the best that can be expected."""
    choreographed: Likeness
    exact: Likeness
    """The model itself, adapter and all, when it reads whole prompts: what learning the one did to the other."""


@dataclass(frozen=True)
class Taught:
    """How a training went."""

    losses: list[float]
    """Of each step, nats per output token."""
    validation: dict[int, float]
    """Steps to the loss on the traces to choose by, after so many of them."""

    @property
    def kept(self) -> int:
        """After how many steps the adapter that was kept was the best one."""
        return min(self.validation, key=self.validation.__getitem__)


def teach(
    model: Any,
    traces: Sequence[Trace],
    to_choose_by: Sequence[Trace],
    settings: Settings,
    say: Callable[[str], None],
) -> Taught:
    """Put an adapter into a causal language model and train it, and keep the best of it, which may be nothing.

    A step has `Settings.batch` traces, and no more than `Settings.tokens` tokens. Raises `ValueError` when there are
    no traces, or one is longer than all the tokens of a step.
    """
    if not traces or not to_choose_by:
        raise ValueError("there are no traces")
    torch.manual_seed(settings.seed)
    adapter = adapt(model, settings.rank)
    validation: dict[int, float] = {}
    best = [part.detach().clone() for part in adapter]

    def watch(steps: int) -> None:
        nonlocal best
        with torch.no_grad():
            weighed = [(float(loss(model, [trace])), _said(trace)) for trace in to_choose_by]
        found = sum(each * tokens for each, tokens in weighed) / sum(tokens for _, tokens in weighed)
        if found < min(validation.values(), default=math.inf):
            best = [part.detach().clone() for part in adapter]
        validation[steps] = found

    losses = descend(
        adapter,
        [size_of(trace) for trace in traces],
        lambda numbers: loss(model, [traces[number] for number in numbers]),
        settings,
        random.Random(settings.seed),
        say,
        watch,
    )
    with torch.no_grad():
        for part, kept in zip(adapter, best, strict=True):
            part.copy_(kept)
    return Taught(losses, validation)


def loss(model: Any, traces: Sequence[Trace]) -> Tensor:
    """KL divergence of what all decodes say under choreographed attention from what the model without its adapter says
    where it reads whole prompts: nats, mean over the tokens of their outputs."""
    said = logits(model, plan(traces, model.device)).log_softmax(-1)
    with torch.no_grad(), without(model):
        # One after the other: whole prompts are many times as long.
        whole = [logits(model, plan([read_whole(trace)], model.device)) for trace in traces]
        reference = torch.cat(whole).log_softmax(-1)
    return torch.nn.functional.kl_div(said, reference, reduction="batchmean", log_target=True)


def _said(trace: Trace) -> int:
    return sum(len(call.output) for call in trace)


@torch.inference_mode()
def fidelity(model: Any, traces: Sequence[Trace]) -> Fidelity:
    """How near the model comes, with its adapter if it has one, to what it was without, which made the traces."""
    sums = torch.zeros(7, dtype=torch.float64)
    for trace in traces:
        choreographed, whole = plan([trace], model.device), plan([read_whole(trace)], model.device)
        with without(model):
            reference = logits(model, whole).log_softmax(-1)
        drawn = reference.gather(1, whole.output[:, None])
        ways = [_likeness(logits(model, made), reference, made.output) for made in (choreographed, whole)]
        of_trace = torch.stack([-drawn.sum(), *ways[0], *ways[1]])
        sums += of_trace.double().cpu()
    tokens = sum(map(_said, traces))
    baseline, *means = (sums / tokens).tolist()
    return Fidelity(len(traces), tokens, baseline, Likeness(*means[:3]), Likeness(*means[3:]))


def _likeness(found: Tensor, reference: Tensor, output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The sums of what a `Likeness` has the means of; ``found`` and ``reference`` are [n, vocabulary]."""
    said = found.log_softmax(-1)
    return (
        -said.gather(1, output[:, None]).sum(),
        (reference.exp() * (reference - said)).sum(),
        (said.argmax(-1) == reference.argmax(-1)).sum().float(),
    )
