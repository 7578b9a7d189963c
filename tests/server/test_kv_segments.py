"""Segments in ordinary requests, on a real server: what is placed, what is computed, and what others notice of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch

from hive.server.kv_segments.separator import SEPARATOR
from hive.server.server_process import ServerProcess, slowdown
from tests.server.kv_client import Answer, KvClient, close, counts, refused, span, tokens
from tests.server.kv_reference import Kv, Reference, joined

pytestmark = pytest.mark.server

FIRST, SECOND = tokens(1, 40), tokens(2, 30)
"""Two segments."""
BEFORE_FIRST, BEFORE_SECOND = tokens(3, 20), tokens(4, 35)
"""Behind what their producers had them."""
HISTORY, BETWEEN, QUESTION = tokens(5, 30), tokens(6, 5), tokens(7, 8)
"""Around them, in the requests that place them."""
PROMPT = HISTORY + FIRST + BETWEEN + SECOND + QUESTION
AT_FIRST, AT_SECOND = len(HISTORY), len(HISTORY + FIRST + BETWEEN)
PLACED = [*range(AT_FIRST, AT_FIRST + 40), *range(AT_SECOND, AT_SECOND + 30)]
NEUTRAL = "You take part in a meeting."
"""As the server's flag has it."""
NEW = 5


@pytest.fixture(scope="module")
def encodings(kv_client: KvClient, reference: Reference) -> dict[str, tuple[Kv, Kv]]:
    """What the two segments are in each context, with their keys where they are placed in the prompt."""
    neutral = kv_client.tokenize(NEUTRAL)
    contexts = {
        "producer": (BEFORE_FIRST, BEFORE_SECOND),
        "standalone": ([], []),
        "neutral": (neutral, neutral),
    }
    return {
        name: (
            _encoded(reference, before[0], FIRST, AT_FIRST),
            _encoded(reference, before[1], SECOND, AT_SECOND),
        )
        for name, before in contexts.items()
    }


@pytest.fixture(scope="module")
def exact(reference: Reference) -> Kv:
    """What all of the prompt is where nothing is placed."""
    return reference.encode(PROMPT)


def _encoded(reference: Reference, before: list[int], segment: list[int], at: int) -> Kv:
    kv = reference.encode(before + segment)
    return reference.moved(kv[len(before) :], at - len(before))


def expected(
    reference: Reference, kv: Kv, prompt: list[int], rows: Sequence[int], answer: Answer
) -> list[dict[int, float]]:
    """Log-probabilities of an answer's tokens, by the reference: ``kv`` is of the prompt, ``rows`` are computed."""
    ids = [*prompt, *answer.ids[:-1]]
    total = len(ids)
    context = joined([kv, reference.nothing(total - len(prompt))])
    logprobs = reference.compute(context, ids, range(total), [*rows, *range(len(prompt), total)])
    last = logprobs[-len(answer.ids) :]
    assert last.argmax(-1).tolist() == answer.ids
    return [
        {token: float(row[token]) for token in said} for row, said in zip(last, answer.logprobs, strict=True)
    ]


def assert_expected(
    reference: Reference, kv: Kv, prompt: list[int], rows: Sequence[int], answer: Answer
) -> None:
    for said, found in zip(answer.logprobs, expected(reference, kv, prompt, rows, answer), strict=True):
        assert said == {token: close(value) for token, value in found.items()}


def placed_in_prompt(reference: Reference, encodings: tuple[Kv, Kv]) -> Kv:
    return joined(
        [
            *(reference.nothing(AT_FIRST), encodings[0]),
            *(reference.nothing(len(BETWEEN)), encodings[1]),
            reference.nothing(len(QUESTION)),
        ]
    )


def produce(kv_client: KvClient, context: str = "producer") -> None:
    """Have both segments stored, each behind a context of its own."""
    if context != "producer":
        spans = {"spans": [span(1, 41), span(41, 71)], "context": context, "corrector": "none"}
        # After a flush, the server may find out by a first request that its encodings have gone.
        for first in (5, 6):
            kv_client.generate([first, *FIRST, *SECOND, 5], spans, new=1)
        return
    for before, segment in ((BEFORE_FIRST, FIRST), (BEFORE_SECOND, SECOND)):
        spans = {"spans": [span(len(before), len(before + segment))]}
        assert kv_client.generate([*before, *segment, 5], spans, new=1).kv == counts(missing=len(segment))


def spans_of(context: str = "producer") -> dict[str, Any]:
    return {
        "spans": [span(AT_FIRST, AT_FIRST + 40), span(AT_SECOND, AT_SECOND + 30)],
        "context": context,
    }


# Correctors, against the reference.


def _none(deviation: torch.Tensor) -> list[int]:
    return []


def _first_share(deviation: torch.Tensor) -> list[int]:
    return [*PLACED[: math.ceil(0.15 * 40)], *PLACED[40 : 40 + math.ceil(0.15 * 30)]]


def _first_tokens(deviation: torch.Tensor) -> list[int]:
    return [*PLACED[:16], *PLACED[40:56]]


def _all(deviation: torch.Tensor) -> list[int]:
    return PLACED


def _most_deviant(deviation: torch.Tensor) -> list[int]:
    return sorted(PLACED[at] for at in deviation.topk(int(0.15 * 70)).indices.tolist())


def _most_deviant_blocks(deviation: torch.Tensor) -> list[int]:
    edges = [*range(0, 40, 8), *range(40, 70, 8), 70]
    blocks = sorted(
        (range(start, end) for start, end in pairwise(edges)),
        key=lambda block: -float(deviation[block.start : block.stop].sum()),
    )
    # Whole blocks, until there are 0.2 * 70 = 14 tokens.
    needed = 1 + sum(total < 14 for total in accumulate(map(len, blocks)))
    return sorted(PLACED[at] for block in blocks[:needed] for at in block)


CORRECTORS = {
    "none": ("none", _none),
    "first-share": ("first-k", _first_share),
    "first-tokens": ({"kind": "first-k", "tokens": 16}, _first_tokens),
    "blend": ({"kind": "blend", "share": 0.15}, _most_deviant),
    "blend-blocks": ({"kind": "blend", "share": 0.2, "block": 8}, _most_deviant_blocks),
    "recompute-all": ("recompute-all", _all),
}


@pytest.mark.parametrize(
    ("context", "name"),
    [
        *[("producer", name) for name in CORRECTORS],
        *[("standalone", "none"), ("standalone", "blend"), ("neutral", "none"), ("neutral", "first-share")],
    ],
)
def test_each_corrector_computes_what_the_reference_does(
    kv_client: KvClient,
    reference: Reference,
    encodings: dict[str, tuple[Kv, Kv]],
    exact: Kv,
    context: str,
    name: str,
) -> None:
    corrector, choose = CORRECTORS[name]
    kv_client.flush()
    produce(kv_client, context)
    answer = kv_client.generate(PROMPT, {**spans_of(context), "corrector": corrector})
    kv = placed_in_prompt(reference, encodings[context])
    deviation = (exact.values[1][:, PLACED] - kv.values[1][:, PLACED]).square().sum((0, 2))
    chosen = choose(deviation)
    assert answer.kv == counts(placed=70 - len(chosen), recomputed=len(chosen))
    rows = [index for index in range(len(PROMPT)) if index not in PLACED or index in chosen]
    assert_expected(reference, kv, PROMPT, rows, answer)


def test_recompute_all_is_the_exact_request(kv_client: KvClient) -> None:
    kv_client.flush()
    exact = kv_client.generate(PROMPT, new=8)
    kv_client.flush()
    produce(kv_client)
    answer = kv_client.generate(PROMPT, {**spans_of(), "corrector": "recompute-all"}, new=8)
    assert answer.kv == counts(recomputed=70)
    assert answer.distance(exact) < 1e-5
    placed = kv_client.generate(PROMPT, {**spans_of(), "corrector": "none"}, new=1)
    assert abs(placed.logprobs[0][placed.ids[0]] - exact.logprobs[0].get(placed.ids[0], 0.0)) > 1e-3, (
        "what is only placed is another encoding"
    )


# Where the KV of a context comes from.


def test_the_exact_prefix_comes_first_and_segments_behind_it(
    kv_client: KvClient, reference: Reference, encodings: dict[str, tuple[Kv, Kv]]
) -> None:
    kv_client.flush()
    produce(kv_client)
    known = PROMPT[: AT_FIRST + 20]
    kv_client.generate([*known, 5], new=1)
    answer = kv_client.generate(PROMPT, {**spans_of(), "corrector": "none"})
    assert answer.kv == counts(exact=len(known), placed=70 - 20)
    kv = placed_in_prompt(reference, encodings["producer"])
    rows = [index for index in range(len(PROMPT)) if index < len(known) or index not in PLACED]
    assert_expected(reference, kv, PROMPT, rows, answer)
    # Half of each segment, of which the first one's is exact.
    again = kv_client.generate(PROMPT, {**spans_of(), "corrector": {"kind": "first-k", "share": 0.5}})
    assert again.kv == counts(exact=len(known), placed=20 + 15, recomputed=15)


def test_what_is_before_the_first_segment_is_exact_for_others(kv_client: KvClient) -> None:
    kv_client.flush()
    produce(kv_client)
    kv_client.generate(PROMPT, spans_of(), new=1)
    assert kv_client.generate(PROMPT, new=1).cached == AT_FIRST
    assert kv_client.generate(PROMPT, new=1).cached == len(PROMPT) - 1


def test_the_segment_that_ends_a_prompt_leaves_its_last_token_to_be_computed(kv_client: KvClient) -> None:
    kv_client.flush()
    produce(kv_client)
    ids = [*HISTORY, *FIRST]
    answer = kv_client.generate(ids, {"spans": [span(AT_FIRST, len(ids))], "corrector": "none"})
    assert answer.kv == counts(placed=len(FIRST) - 1)
    assert kv_client.generate(FIRST, {"spans": [span(0, 40)], "corrector": "recompute-all"}).kv == counts(
        recomputed=39
    )


def test_requests_at_the_same_position_share_slots(kv_client: KvClient) -> None:
    kv_client.flush()
    produce(kv_client)
    at_home = kv_client.store()
    frame = {"spans": [span(len(BEFORE_FIRST), len(BEFORE_FIRST) + 40)], "corrector": "none"}
    kv_client.generate([*tokens(50, len(BEFORE_FIRST)), *FIRST, 5], frame, new=1)
    moved = kv_client.store()
    assert moved["placed_tokens"] - at_home["placed_tokens"] == 40
    assert moved["copied_tokens"] == at_home["copied_tokens"], "where it was encoded, nothing is copied"
    spans = {"spans": [span(AT_FIRST, AT_FIRST + 40)], "corrector": "none"}
    with ThreadPoolExecutor(4) as pool:
        asked = [[*tokens(60 + number, AT_FIRST), *FIRST, 5] for number in range(4)]
        answers = list(pool.map(lambda ids: kv_client.generate(ids, spans), asked))
    assert [answer.kv for answer in answers] == [counts(placed=40)] * 4
    shared = kv_client.store()
    assert shared["placed_tokens"] - moved["placed_tokens"] == 4 * 40
    assert shared["copied_tokens"] - moved["copied_tokens"] == 40, "one copy for all"
    assert shared["leased_tokens"] == 0


def test_an_output_that_is_kept_can_be_placed(kv_client: KvClient, reference: Reference) -> None:
    kv_client.flush()
    said = kv_client.generate(HISTORY, {"keep_output": True}, new=20)
    # The last token was sampled and never computed.
    segment = said.ids[:-1]
    ids = [*BETWEEN, *segment, *QUESTION]
    at = len(BETWEEN)
    spans = [span(at, at + len(segment))]
    answer = kv_client.generate(ids, {"spans": spans, "corrector": "none"})
    assert answer.kv == counts(placed=len(segment))
    encoded = reference.moved(reference.encode(HISTORY + segment)[len(HISTORY) :], at - len(HISTORY))
    kv = joined([reference.nothing(at), encoded, reference.nothing(len(QUESTION))])
    rows = [*range(at), *range(at + len(segment), len(ids))]
    assert_expected(reference, kv, ids, rows, answer)
    assert kv_client.generate(HISTORY, {"keep_output": True}, new=2).cached == len(HISTORY) - 1


def test_what_was_evicted_to_the_host_comes_back(
    kv_client: KvClient, reference: Reference, encodings: dict[str, tuple[Kv, Kv]]
) -> None:
    kv_client.flush()
    produce(kv_client)
    evicted = kv_client.store()["evicted"]
    # More than half of the pool together, which is all that segments get.
    for seed in range(70, 73):
        kv_client.generate([*tokens(seed, 200), 5], {"spans": [span(0, 200)]}, new=1)
    store = kv_client.store()
    assert store["evicted"] > evicted
    assert store["host_tokens"] >= 70
    assert store["tokens"] <= store["capacity_tokens"] == 512
    answer = kv_client.generate(PROMPT, {**spans_of(), "corrector": "none"})
    assert answer.kv == counts(placed=70)
    kv = placed_in_prompt(reference, encodings["producer"])
    rows = [index for index in range(len(PROMPT)) if index not in PLACED]
    assert_expected(reference, kv, PROMPT, rows, answer)


def test_a_long_context_in_chunks_with_segments_in_it(kv_client: KvClient, reference: Reference) -> None:
    """Both what is before the segments and what is behind them is longer than a chunk."""
    kv_client.flush()
    produce(kv_client)
    before, behind = tokens(80, 100), tokens(81, 90)
    ids = [*before, *FIRST, *SECOND, *behind]
    spans = [span(100, 140), span(140, 170)]
    answer = kv_client.generate(ids, {"spans": spans, "corrector": {"kind": "first-k", "tokens": 5}})
    assert answer.kv == counts(placed=60, recomputed=10)
    kv = joined(
        [
            reference.nothing(100),
            _encoded(reference, BEFORE_FIRST, FIRST, 100),
            _encoded(reference, BEFORE_SECOND, SECOND, 140),
            reference.nothing(90),
        ]
    )
    rows = [*range(105), *range(140, 145), *range(170, 260)]
    assert_expected(reference, kv, ids, rows, answer)


# Separators in text.

TALK = [
    "Two people met. ",
    "Ann said: the bridge is closed until Monday. ",
    "Bob said: ",
    "So we walk.",
    " Then",
]


def test_separators_in_a_text_say_what_its_segments_are(kv_client: KvClient) -> None:
    kv_client.flush()
    parts = [kv_client.tokenize(part) for part in TALK]
    segments = sum(len(part) for part in parts[1:4])

    def ask(first: str, **segments: Any) -> Any:
        params = {"max_new_tokens": 4, "temperature": 0, "custom_params": {"hive_segments": segments}}
        text = SEPARATOR.join([first, *TALK[1:]])
        return kv_client.post("/generate", {"text": text, "sampling_params": params})

    stored = ask(TALK[0])
    assert stored["meta_info"]["hive"]["kv"] == counts(missing=segments)
    assert stored["meta_info"]["prompt_tokens"] == sum(map(len, parts))
    exact = kv_client.generate([token for part in parts for token in part], new=4)
    assert stored["output_ids"] == exact.ids, "what had to be computed was an ordinary request"
    placed = ask("", corrector="none")
    assert placed["meta_info"]["hive"]["kv"] == counts(placed=segments)
    again = ask("Somewhere else ", corrector="recompute-all")
    assert again["meta_info"]["hive"]["kv"] == counts(recomputed=segments)
    whole = kv_client.generate(
        [*kv_client.tokenize("Somewhere else "), *(token for part in parts[1:] for token in part)], new=4
    )
    assert again["output_ids"] == whole.ids


def test_separators_in_a_completion(kv_client: KvClient) -> None:
    kv_client.flush()
    segments = sum(len(kv_client.tokenize(part)) for part in TALK[1:4])

    def ask(first: str) -> Any:
        body = {"model": "any", "prompt": SEPARATOR.join([first, *TALK[1:]]), "max_tokens": 4}
        (choice,) = kv_client.post("/v1/completions", body)["choices"]
        return choice["meta_info"]["hive"]["kv"]

    assert ask(TALK[0]) == counts(missing=segments)
    again = ask("Elsewhere: ")
    # A server's default: the first 15% of each segment are computed again.
    assert again["placed"] + again["recomputed"] == segments
    assert again["recomputed"] == sum(math.ceil(0.15 * len(kv_client.tokenize(part))) for part in TALK[1:4])


def test_separators_in_a_chat(kv_client: KvClient) -> None:
    kv_client.flush()
    minutes = "\nAnn: the bridge is closed.\nBob: then we walk.\n"

    def ask(system: str, separator: str, escapes: bool = False, **segments: Any) -> Any:
        content = f"The minutes:{separator}{minutes}{separator}Who walks?"
        body = {
            "model": "any",
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": content}],
            "max_tokens": 5,
            "temperature": 0,
            "return_meta_info": True,
            "custom_params": {"hive_segments": segments},
        }
        text = json.dumps(body)
        answer = kv_client.http.post(
            "/v1/chat/completions",
            content=text.replace("<", r"\u003c") if escapes else text,
            headers={"content-type": "application/json"},
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    length = len(kv_client.tokenize(minutes))
    first = ask("You help.", SEPARATOR)
    assert first["choices"][0]["meta_info"]["hive"]["kv"] == counts(missing=length)
    placed = ask("You answer.", SEPARATOR, corrector="recompute-all")
    assert placed["choices"][0]["meta_info"]["hive"]["kv"]["recomputed"] == length
    escaped = ask("You listen.", SEPARATOR, escapes=True, corrector="recompute-all")
    assert escaped["choices"][0]["meta_info"]["hive"]["kv"]["recomputed"] == length
    plain = ask("You answer.", "")
    assert placed["choices"][0]["message"]["content"] == plain["choices"][0]["message"]["content"]
    assert placed["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]


def test_spans_on_openais_routes(kv_client: KvClient) -> None:
    kv_client.flush()
    produce(kv_client)
    body = {
        "model": "any",
        "prompt": PROMPT,
        "max_tokens": 2,
        "custom_params": {"hive_segments": {**spans_of(), "corrector": "none"}},
    }
    (choice,) = kv_client.post("/v1/completions", body)["choices"]
    assert choice["meta_info"]["hive"]["kv"] == counts(placed=70)


# Isolation.


@pytest.mark.parametrize("context", ["producer", "standalone", "neutral"])
def test_tenants_never_find_each_others_segments(kv_client: KvClient, context: str) -> None:
    kv_client.flush()
    asked = {"spans": [span(30, 70)], "context": context, "corrector": "none"}

    def ask(seed: int, tenant: str) -> Answer:
        return kv_client.generate([*tokens(seed, 30), *FIRST, 5], asked, new=1, tenant=tenant)

    for number, tenant in enumerate(("ann", "bob"), 1):
        first = ask(90, tenant)
        if context == "producer":
            assert first.kv == counts(missing=40)
        # After a flush, the server may find out by a first request that its encodings have gone.
        ask(91, tenant)
        assert ask(92, tenant).kv == counts(placed=40)
        assert kv_client.store()["segments"] == number, "each has one of its own"
    if context == "producer":
        assert kv_client.generate([*tokens(90, 30), *FIRST, 5], asked, new=1).kv == counts(missing=40)


@pytest.mark.parametrize("context", ["producer", "standalone"])
def test_extra_keys_keep_segments_apart(kv_client: KvClient, context: str) -> None:
    kv_client.flush()
    asked = {"spans": [span(30, 70)], "context": context, "corrector": "none"}
    params = {"max_new_tokens": 1, "custom_params": {"hive_segments": asked}}

    def ask(seed: int, **fields: str) -> Any:
        body = {"input_ids": [*tokens(seed, 30), *FIRST, 5], "sampling_params": params, **fields}
        return kv_client.post("/generate", body)["meta_info"]["hive"]["kv"]

    keys: tuple[dict[str, str], ...] = ({}, {"extra_key": "one"}, {"extra_key": "two"})
    for number, fields in enumerate(keys, 1):
        first = ask(90, **fields)
        if context == "producer":
            assert first == counts(missing=40)
        # After a flush, the server may find out by a first request that its encodings have gone.
        ask(91, **fields)
        assert ask(92, **fields) == counts(placed=40)
        assert kv_client.store()["segments"] == number


ORDINARY = [[*BEFORE_FIRST, *FIRST, 5], PROMPT, tokens(8, 100)]
"""Requests that say nothing of segments; some have tokens of stored ones, behind what was before them, too."""


def ordinary(kv_client: KvClient) -> list[Answer]:
    return [kv_client.generate(ids, new=6) for ids in ORDINARY]


def test_ordinary_requests_notice_nothing_of_segments(kv_client: KvClient) -> None:
    kv_client.flush()
    before = ordinary(kv_client)
    assert [answer.kv for answer in before] == [None] * len(ORDINARY)
    kv_client.flush()
    produce(kv_client)
    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(mixed, kv_client, number) for number in range(6)]
        during = ordinary(kv_client)
        assert all(isinstance(other.result(), dict) for other in others)
    after = ordinary(kv_client)
    for answers in during, after:
        for ours, theirs in zip(answers, before, strict=True):
            # Of the same tokens; in other batches their log-probabilities are rounded otherwise.
            assert ours.distance(theirs) < 5e-5


def test_distributions_behind_placed_segments_are_not_replayed_to_others(kv_client: KvClient) -> None:
    kv_client.flush()
    exact = kv_client.generate(PROMPT)
    kv_client.flush()
    produce(kv_client)
    placed = kv_client.generate(PROMPT, {**spans_of(), "corrector": "none"}, replay="stepwise")
    assert placed.kv == counts(placed=70)
    for replayed in (0, len(exact.ids)):
        answer = kv_client.generate(PROMPT, replay="stepwise")
        assert answer.replayed == replayed
        assert answer.distance(exact) < 1e-5


def mixed(kv_client: KvClient, number: int) -> dict[str, int]:
    """One of many requests that place segments, some of which are stored."""
    context = ("producer", "standalone", "neutral")[number % 3]
    corrector = list(CORRECTORS.values())[number % len(CORRECTORS)][0]
    start = number % 30
    ids = [*HISTORY[:start], *FIRST, *tokens(100 + number // 2, 10), *SECOND, number + 5]
    spans = [span(start, start + 40), span(start + 40, start + 50), span(start + 50, start + 80)]
    asked = {"spans": spans, "context": context, "corrector": corrector, "keep_output": number % 2 == 0}
    kv = kv_client.generate(ids, asked, new=4 + number % 3).kv
    assert kv is not None
    assert kv["placed"] + kv["recomputed"] + kv["missing"] + kv["exact"] >= 80
    return kv


# Bad requests.


@pytest.mark.parametrize(
    ("segments", "param"),
    [
        ([], ""),
        ({"span": []}, ".span"),
        ({"spans": {}}, ".spans"),
        ({"spans": [[1, 2]]}, ".spans[0]"),
        ({"spans": [{"start": 0}]}, ".spans[0].end"),
        ({"spans": [span(0, 4, text="x")]}, ".spans[0].text"),
        ({"spans": [span(-1, 4)]}, ".spans[0].start"),
        ({"spans": [span(0, 11)]}, ".spans[0].end"),
        ({"spans": [span(0, 2000)]}, ".spans[0].end"),
        ({"spans": [span(4, 4)]}, ".spans[0].end"),
        ({"spans": [span(0, True)]}, ".spans[0].end"),
        ({"spans": [span(0, 4.0)]}, ".spans[0].end"),
        ({"spans": [span(4, 8), span(0, 4)]}, ".spans[1].start"),
        ({"spans": [span(0, 5), span(4, 8)]}, ".spans[1].start"),
        ({"spans": [span(0, 5, context="mine")]}, ".spans[0].context"),
        ({"context": ["producer"]}, ".context"),
        ({"keep_output": 1}, ".keep_output"),
        ({"corrector": "some"}, ".corrector"),
        ({"corrector": {"share": 0.5}}, ".corrector.kind"),
        ({"corrector": {"kind": "none", "share": 0.5}}, ".corrector.share"),
        ({"corrector": {"kind": "first-k", "share": 1.5}}, ".corrector.share"),
        ({"corrector": {"kind": "first-k", "tokens": 0}}, ".corrector.tokens"),
        ({"corrector": {"kind": "first-k", "tokens": 4, "share": 0.5}}, ".corrector.tokens"),
        ({"corrector": {"kind": "blend", "block": "x"}}, ".corrector.block"),
    ],
    ids=str,
)
def test_bad_segments_are_refused(kv_client: KvClient, segments: Any, param: str) -> None:
    custom = {"hive_segments": segments}
    params = {"max_new_tokens": 1, "custom_params": custom}
    for stream in (False, True):
        answer = kv_client.raw(
            "/generate", {"input_ids": tokens(9, 10), "sampling_params": params, "stream": stream}
        )
        refused(answer, f"sampling_params.custom_params.hive_segments{param}")
        answer = kv_client.raw(
            "/v1/completions",
            {"model": "any", "prompt": tokens(9, 10), "custom_params": custom, "stream": stream},
        )
        refused(answer, f"custom_params.hive_segments{param}")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text": "Hi", "segments": {"spans": [span(0, 1)]}}, "hive_segments.spans"),
        ({"text": f"a{SEPARATOR}b{SEPARATOR}c", "segments": {"spans": [span(0, 1)]}}, "hive_segments.spans"),
        ({"input_ids": [[5, 6], [7, 8]], "segments": {"spans": [span(0, 1)]}}, "hive_segments"),
        ({"text": ["a", "b"], "segments": {"keep_output": True}}, "hive_segments"),
    ],
    ids=str,
)
def test_segments_that_do_not_fit_a_prompt_are_refused(kv_client: KvClient, body: Any, param: str) -> None:
    segments = body.pop("segments")
    params = {"max_new_tokens": 1, "custom_params": {"hive_segments": segments}}
    answer = kv_client.raw("/generate", {**body, "sampling_params": params})
    refused(answer, f"sampling_params.custom_params.{param}")


@pytest.mark.parametrize(("path", "name"), [("/generate", "text"), ("/v1/completions", "prompt")])
def test_separators_in_a_list_of_prompts_are_refused(kv_client: KvClient, path: str, name: str) -> None:
    separated = SEPARATOR.join(TALK)
    for texts, at in ((["a", separated], 1), ([separated], 0)):
        refused(kv_client.raw(path, {"model": "any", name: texts}), f"{name}[{at}]")


def test_what_several_samples_of_a_request_miss_is_made_again(kv_client: KvClient) -> None:
    first, second = span(AT_FIRST, AT_FIRST + 40), span(AT_SECOND, AT_SECOND + 30)
    both = {"spans": [first, second], "context": "standalone", "corrector": "none"}
    one = {**both, "spans": [first]}
    kv_client.generate(PROMPT, both)
    kv_client.flush()
    assert kv_client.generate(PROMPT, one).kv == counts(missing=40)
    # The tree is not to have what samples of a request would find of the first of them.
    kv_client.flush()
    assert kv_client.generate(PROMPT, one).kv == counts(placed=40)
    params = {"n": 2, "max_new_tokens": NEW, "ignore_eos": True, "custom_params": {"hive_segments": both}}
    answers = kv_client.post("/generate", {"input_ids": PROMPT, "sampling_params": params})
    assert [answer["meta_info"]["hive"]["kv"]["missing"] for answer in answers] == [30, 30]
    assert kv_client.generate(PROMPT, both).kv == counts(exact=AT_FIRST, placed=70)


def test_what_hive_tells_its_scheduler_cannot_be_said_by_clients(kv_client: KvClient) -> None:
    params = {"max_new_tokens": 1, "custom_params": {"hive_kv": "{}"}}
    answer = kv_client.raw("/generate", {"text": "Hi", "sampling_params": params})
    refused(answer, "sampling_params.custom_params.hive_kv")


def test_without_the_flag_segments_are_refused(server: ServerProcess) -> None:
    client = KvClient(server)
    params = {"max_new_tokens": 1, "custom_params": {"hive_segments": {}}}
    answer = client.raw("/generate", {"text": "Hi", "sampling_params": params})
    refused(answer, "sampling_params.custom_params.hive_segments")
    assert "--hive-kv-segments" in answer.json()["error"]["message"]
    client.http.close()


@pytest.mark.long
@pytest.mark.parametrize("flags", [("--hive-kv-segments-bytes", "1T")], ids=" ".join)
def test_a_server_that_cannot_have_segments_says_why_and_ends(
    launch_server: Callable[..., ServerProcess], flags: tuple[str, ...]
) -> None:
    server = launch_server("--hive-kv-segments", *flags, wait=False)
    assert server.process.wait(120 * slowdown()) != 0
    told = [line for line in server.log_path.read_text().splitlines() if "--hive-kv-segments" in line]
    assert flags[0] in told[-1]
