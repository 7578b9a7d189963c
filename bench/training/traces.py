"""Traces of workflows under the baseline: who made which message, from what, and where everything stood.

The baseline of the Prompt Choreography paper (section 3.1) reads all parents of a call as one text, exactly. What it
says is what choreographed execution is then trained to say (section 3.2); a trace keeps the program's parents and
offsets, which the baseline has no use for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, NamedTuple, Unpack

import torch

from bench.training.lora import tokens
from examples.choreography.workflows import How, Where, Workflow

_TICKS: Final = 20
"""So often the event loop goes round without a new request before those that wait are answered together."""


@dataclass(frozen=True)
class Call:
    """A prefill or a decode, and the message that came of it."""

    tokens: tuple[int, ...]
    """The message: what was given, then what was generated, without the token that ended it."""
    given: int
    """How many of the tokens were given: of a prefill all, of a decode the header."""
    parents: tuple[int, ...] = ()
    """The numbers of the calls that made them, all of them earlier in the trace."""
    starts: tuple[int, ...] = ()
    """Where each parent begins in this call, in tokens."""
    start: int = 0
    """Where the message itself begins."""
    end: int | None = None
    """The token that ended it, if the model did."""

    @property
    def output(self) -> tuple[int, ...]:
        """What the model said, with the token by which it ended."""
        ending = () if self.end is None else (self.end,)
        return self.tokens[self.given :] + ending


Trace = tuple[Call, ...]


def size_of(trace: Trace) -> int:
    """Tokens of all messages, each counted once."""
    return sum(len(call.tokens) for call in trace)


def read_whole(trace: Trace) -> Trace:
    """The decodes of a trace as the baseline makes them: each reads its parents and its header as one text, alone.

    Offsets mean nothing to it.
    """
    found = []
    for call in trace:
        if call.output:
            before = [token for parent in call.parents for token in trace[parent].tokens]
            found.append(Call((*before, *call.tokens), len(before) + call.given, end=call.end))
    return tuple(found)


def arranged(
    lengths: Sequence[int], offsets: Sequence[int | None] | None, new_offset: int | None
) -> tuple[tuple[int, ...], int]:
    """Where parents of some lengths begin, and the new message: those that are not said begin where the parent before
    ends. Raises `ValueError` when there are not as many offsets as parents, or one is negative.
    """
    said = [None] * len(lengths) if offsets is None else offsets
    if len(said) != len(lengths):
        raise ValueError(f"{len(lengths)} parents have {len(said)} offsets")
    starts, end = [], 0
    for length, offset in zip(lengths, said, strict=True):
        starts.append(end if offset is None else offset)
        end = starts[-1] + length
    start = end if new_offset is None else new_offset
    if min([start, *starts]) < 0:
        raise ValueError(f"offsets are 0 or more, not {min([start, *starts])}")
    return tuple(starts), start


def record(
    model: Any,
    tokenizer: Any,
    workflow: Workflow,
    problems: Iterable[str],
    *,
    max_tokens: int,
    batch_tokens: int,
    temperature: float = 1.0,
    seed: int = 0,
) -> list[Trace]:
    """Run a workflow on problems, all at once, with a causal language model that reads whole prompts.

    ``batch_tokens`` bounds what is generated together, in tokens with padding. Everything is drawn from one generator,
    so the calls' own seeds are not used: the same seed and the same problems give the same traces.
    """

    async def all_of_them() -> list[Trace]:
        sampler = _Sampler(model, tokenizer.eos_token_id, batch_tokens)
        recorders = [_Recorder(sampler, tokenizer) for _ in asked]
        await asyncio.gather(
            *(
                workflow(recorder, problem, max_tokens=max_tokens, temperature=temperature, seed=seed)
                for recorder, problem in zip(recorders, asked, strict=True)
            )
        )
        return [tuple(recorder.calls) for recorder in recorders]

    asked = list(problems)
    torch.manual_seed(seed)
    return asyncio.run(all_of_them())


class _Recorded(NamedTuple):
    """A message, to the workflow."""

    number: int
    text: str


class _Recorder:
    """Makes messages by their texts, and writes down each call."""

    def __init__(self, sampler: _Sampler, tokenizer: Any) -> None:
        self._sampler = sampler
        self._tokenizer = tokenizer
        self.calls: list[Call] = []

    async def prefill(
        self, text: str, parents: Sequence[_Recorded] = (), **where: Unpack[Where]
    ) -> _Recorded:
        given = tokens(self._tokenizer, text)
        return self._add(given, len(given), None, text, parents, where)

    async def decode(self, header: str, parents: Sequence[_Recorded] = (), **how: Unpack[How]) -> _Recorded:
        given = tokens(self._tokenizer, header)
        prompt = [token for parent in parents for token in self.calls[parent.number].tokens]
        output, end = await self._sampler.answer([*prompt, *given], how["max_tokens"], how["temperature"])
        text: str = self._tokenizer.decode(output, skip_special_tokens=True)
        return self._add([*given, *output], len(given), end, text, parents, how)

    def _add(
        self,
        message: Sequence[int],
        given: int,
        end: int | None,
        text: str,
        parents: Sequence[_Recorded],
        where: Where,
    ) -> _Recorded:
        numbers = tuple(parent.number for parent in parents)
        lengths = [len(self.calls[number].tokens) for number in numbers]
        starts, start = arranged(lengths, where.get("offsets"), where.get("new_offset"))
        self.calls.append(Call(tuple(message), given, numbers, starts, start, end))
        return _Recorded(len(self.calls) - 1, text)


class _Waiting(NamedTuple):
    prompt: list[int]
    max_tokens: int
    temperature: float
    answer: asyncio.Future[tuple[list[int], int | None]]


class _Sampler:
    """Generates for all who wait, together."""

    def __init__(self, model: Any, end: int, batch_tokens: int) -> None:
        self._model = model
        self._end = end
        self._batch_tokens = batch_tokens
        self._waiting: list[_Waiting] = []
        self._serving: asyncio.Task[None] | None = None

    async def answer(
        self, prompt: list[int], max_tokens: int, temperature: float
    ) -> tuple[list[int], int | None]:
        """What is generated behind a prompt, and the token that ended it if one did."""
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(prompt, max_tokens, temperature, answer))
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve())
        found: tuple[list[int], int | None] = await answer
        return found

    async def _serve(self) -> None:
        seen, quiet = 0, 0
        while quiet < _TICKS:
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(self._waiting) == seen else 0
            seen = len(self._waiting)
        waiting, self._waiting, self._serving = self._waiting, [], None
        # Those of about one length together, and apart those that may say less.
        alike = sorted(waiting, key=lambda each: (each.max_tokens, each.temperature, len(each.prompt)))
        try:
            for _, some in groupby(alike, key=lambda each: (each.max_tokens, each.temperature)):
                for batch in self._batches(list(some)):
                    self._generate(batch)
        except Exception as error:
            # They would wait for ever.
            for each in waiting:
                if not each.answer.done():
                    each.answer.set_exception(error)

    def _batches(self, some: Sequence[_Waiting]) -> list[list[_Waiting]]:
        """In their order, by ascending length, as many together as the bound admits, and one at least."""
        cut: list[list[_Waiting]] = [[]]
        for each in some:
            if cut[-1] and (len(cut[-1]) + 1) * (len(each.prompt) + each.max_tokens) > self._batch_tokens:
                cut.append([])
            cut[-1].append(each)
        return cut

    @torch.inference_mode()
    def _generate(self, batch: Sequence[_Waiting]) -> None:
        longest = max(len(each.prompt) for each in batch)
        padding = [longest - len(each.prompt) for each in batch]
        device = self._model.device
        ids = torch.tensor(
            [[self._end] * before + each.prompt for before, each in zip(padding, batch, strict=True)],
            device=device,
        )
        there = torch.arange(longest, device=device) >= torch.tensor(padding, device=device)[:, None]
        written = self._model.generate(
            input_ids=ids,
            attention_mask=there.long(),
            max_new_tokens=batch[0].max_tokens,
            do_sample=True,
            temperature=batch[0].temperature,
            # All of the vocabulary, as it is weighed: the defaults of the library and of models cut it off.
            top_k=0,
            top_p=1.0,
            eos_token_id=self._end,
            pad_token_id=self._end,
        )
        for each, output in zip(batch, written[:, longest:].tolist(), strict=True):
            if self._end in output:
                each.answer.set_result((output[: output.index(self._end)], self._end))
            else:
                each.answer.set_result((output, None))
