"""Messages that a real server keeps: made by prefill and decode, placed anywhere, and gone when they are deleted."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from hive.server.server_process import ServerProcess
from tests.server.kv_client import Answer, KvClient, counts, refused, span, tokens
from tests.server.kv_reference import Kv, Reference, joined

pytestmark = pytest.mark.server

SYSTEM, QUERY, REMARK, HEADER = tokens(201, 40), tokens(202, 60), tokens(203, 30), tokens(204, 10)
CONTEXT_LENGTH = 512
"""Of the server."""


@dataclass(frozen=True)
class Made:
    """A message by the reference."""

    tokens: list[int]
    kv: Kv
    offset: int
    """Where its keys are rotated to."""


def make(
    reference: Reference, own: list[int], parents: Sequence[tuple[Made, int]] = (), offset: int | None = None
) -> Made:
    """A message behind parents at offsets."""
    if offset is None:
        offset = parents[-1][1] + len(parents[-1][0].tokens) if parents else 0
    before = [reference.moved(parent.kv, at - parent.offset) for parent, at in parents]
    return Made(own, reference.encode(own, offset, joined(before) if before else None), offset)


def assert_likeliest(
    reference: Reference,
    decoded: dict[str, Any],
    header: list[int],
    parents: Sequence[tuple[Made, int]],
    again: Sequence[int] = (),
) -> None:
    """Raise AssertionError unless a decoded message is the likeliest one by the reference.

    ``again`` are indices among the parents' tokens that are computed again where they are placed.
    """
    own = [*header, *decoded["output_ids"]]
    context = [token for parent, _ in parents for token in parent.tokens]
    ids = [*context, *own]
    positions = [at + index for parent, at in parents for index in range(len(parent.tokens))]
    positions += range(decoded["offset"], decoded["offset"] + len(own))
    kv = joined(
        [
            *(reference.moved(parent.kv, at - parent.offset) for parent, at in parents),
            reference.nothing(len(own)),
        ]
    )
    logprobs = reference.compute(kv, ids, positions, [*again, *range(len(context), len(ids))])
    likeliest = logprobs[len(again) + len(header) - 1 : -1].argmax(-1).tolist()
    assert decoded["output_ids"] == likeliest


# Messages and ordinary requests.


def test_a_chain_of_messages_is_an_ordinary_request(kv_client: KvClient) -> None:
    kv_client.flush()
    made: list[str] = []
    at = 0
    for own in (SYSTEM, QUERY, REMARK):
        message = kv_client.prefill(own, *made)
        assert (message["offset"], message["tokens"], message["end"]) == (at, len(own), at + len(own))
        assert message["kv"] == counts(placed=at)
        assert message["meta_info"]["prompt_tokens"] == message["end"]
        made.append(message["id"])
        at = message["end"]
    said = kv_client.decode(HEADER, *made)
    whole = kv_client.generate([*SYSTEM, *QUERY, *REMARK, *HEADER], new=8)
    assert said["output_ids"] == whole.ids
    assert said["text"] == whole.text
    assert said["finish_reason"] == {"type": "length", "length": 8}
    assert (said["offset"], said["tokens"], said["kv"]) == (at, len(HEADER) + 8, counts(placed=at))
    # What was decoded, too, has all its KV.
    more = kv_client.decode(HEADER[:3], *made, said["id"])
    following = [*SYSTEM, *QUERY, *REMARK, *HEADER, *said["output_ids"], *HEADER[:3]]
    assert more["output_ids"] == kv_client.generate(following, new=8).ids
    assert more["kv"] == counts(placed=said["end"])


def test_messages_in_words(kv_client: KvClient) -> None:
    kv_client.flush()
    texts = ["<|im_start|>user\nThe capital of Peru?<|im_end|>\n", "<|im_start|>assistant\n"]
    asked = kv_client.post("/hive/prefill", {"text": texts[0]})
    params = {"max_new_tokens": 6, "temperature": 0}
    said = kv_client.post(
        "/hive/decode", {"header": texts[1], "parents": [asked["id"]], "sampling_params": params}
    )
    whole = kv_client.post("/generate", {"text": "".join(texts), "sampling_params": params})
    assert (said["text"], said["output_ids"]) == (whole["text"], whole["output_ids"])
    assert asked["tokens"] == len(kv_client.tokenize(texts[0]))


def test_the_token_that_ends_a_message_is_no_part_of_it(kv_client: KvClient) -> None:
    kv_client.flush()
    free = kv_client.decode(HEADER)
    end = free["output_ids"][5]
    at = free["output_ids"].index(end)
    params = {"max_new_tokens": 8, "temperature": 0, "stop_token_ids": [end]}
    said = kv_client.post("/hive/decode", {"header_tokens": HEADER, "sampling_params": params})
    assert said["finish_reason"] == {"type": "stop", "matched": end}
    assert said["output_ids"] == free["output_ids"][:at]
    assert (said["tokens"], said["end"]) == (len(HEADER) + at, len(HEADER) + at)
    more = kv_client.decode(HEADER, said["id"])
    whole = kv_client.generate([*HEADER, *said["output_ids"], *HEADER], new=8)
    assert more["output_ids"] == whole.ids


# Where messages are.


LAYOUTS = {
    "in order": ([0, 1, 2], [None, None, None], None),
    "one left out": ([0, 2], [None, None], None),
    "reordered": ([2, 0, 1], [None, None, None], None),
    "gaps": ([0, 1, 2], [10, 100, 300], 450),
    "overlaps": ([0, 1, 2], [0, 0, 0], 60),
    "backwards": ([0, 1, 2], [400, 100, 0], 50),
    "before all": ([1, 2], [300, None], 0),
    "where they were made": ([1, 2], [40, 0], None),
}


@pytest.fixture(scope="module")
def triple(kv_client: KvClient, reference: Reference) -> list[tuple[dict[str, Any], Made]]:
    """Messages of the server, and the same by the reference: the second is made behind the first, in a gap."""
    kv_client.flush()
    system = kv_client.prefill(SYSTEM)
    query = kv_client.prefill(QUERY, system["id"], offsets=[3], new_offset=100)
    remark = kv_client.prefill(REMARK)
    theirs = make(reference, SYSTEM)
    return [
        (system, theirs),
        (query, make(reference, QUERY, [(theirs, 3)], 100)),
        (remark, make(reference, REMARK)),
    ]


@pytest.mark.parametrize("name", LAYOUTS)
def test_messages_may_be_anywhere(
    kv_client: KvClient, reference: Reference, triple: list[tuple[dict[str, Any], Made]], name: str
) -> None:
    which, offsets, new_offset = LAYOUTS[name]
    parents = [triple[number] for number in which]
    said = kv_client.decode(
        HEADER, *[message["id"] for message, _ in parents], offsets=offsets, new_offset=new_offset
    )
    behind, at = 0, []
    for (message, _), offset in zip(parents, offsets, strict=True):
        at.append(behind if offset is None else offset)
        behind = at[-1] + message["tokens"]
    assert said["offset"] == (behind if new_offset is None else new_offset)
    assert said["kv"] == counts(placed=sum(message["tokens"] for message, _ in parents))
    placed = [(made, offset) for (_, made), offset in zip(parents, at, strict=True)]
    assert_likeliest(reference, said, HEADER, placed)


@pytest.mark.parametrize(
    ("corrector", "again"),
    [
        ("recompute-all", [*range(100)]),
        ({"kind": "first-k", "tokens": 7}, [*range(7), *range(40, 47)]),
        ({"kind": "first-k", "share": 0.25}, [*range(10), *range(40, 55)]),
    ],
    ids=str,
)
def test_correctors_compute_messages_again_where_they_are_placed(
    kv_client: KvClient,
    reference: Reference,
    triple: list[tuple[dict[str, Any], Made]],
    corrector: Any,
    again: list[int],
) -> None:
    (system, ours), (query, theirs), _ = triple
    said = kv_client.decode(
        HEADER, system["id"], query["id"], offsets=[300, 50], new_offset=400, corrector=corrector
    )
    assert said["kv"] == counts(placed=100 - len(again), recomputed=len(again))
    assert_likeliest(reference, said, HEADER, [(ours, 300), (theirs, 50)], again)


def test_one_parent_at_several_positions_at_once(
    kv_client: KvClient, triple: list[tuple[dict[str, Any], Made]]
) -> None:
    (query, _), (remark, _) = triple[1:]
    params = {"max_new_tokens": 5, "temperature": 0, "ignore_eos": True}
    calls = [
        {
            "header_tokens": HEADER,
            "parents": [query["id"], remark["id"]][:: 1 if number % 2 else -1],
            "offsets": [number * 50, None],
            "sampling_params": params,
        }
        for number in range(3)
    ]
    together = kv_client.post("/hive/decode", {"calls": calls})["results"]
    alone = [kv_client.post("/hive/decode", call) for call in calls]
    assert [answer["output_ids"] for answer in together] == [answer["output_ids"] for answer in alone]
    assert [answer["offset"] for answer in together] == [number * 50 + 90 for number in range(3)]
    assert len({answer["id"] for answer in together + alone}) == 6
    assert len({str(answer["output_ids"]) for answer in together}) > 1


def test_messages_that_left_the_store_are_computed_again_where_they_are_wanted(
    kv_client: KvClient, reference: Reference, triple: list[tuple[dict[str, Any], Made]]
) -> None:
    (system, ours), (query, theirs), _ = triple
    parents, offsets = (system["id"], query["id"]), [70, 200]
    kv_client.flush()
    said = kv_client.decode(HEADER, *parents, offsets=offsets, new_offset=400)
    assert said["kv"] == counts(missing=100)
    assert_likeliest(reference, said, HEADER, [(ours, 70), (theirs, 200)], [*range(100)])
    # Only one of them is there.
    kv_client.flush()
    one = kv_client.prefill(REMARK)
    both = kv_client.decode(HEADER, one["id"], query["id"], new_offset=300)
    assert both["kv"] == counts(placed=30, missing=60)
    made = make(reference, REMARK)
    assert_likeliest(reference, both, HEADER, [(made, 0), (theirs, 30)], [*range(30, 90)])


@pytest.mark.long
def test_long_messages_are_computed_in_chunks(kv_client: KvClient, reference: Reference) -> None:
    kv_client.flush()
    long = [tokens(210 + number, 100) for number in range(3)]
    first, second = (kv_client.prefill(own)["id"] for own in long[:2])
    third = kv_client.prefill(long[2], second, first, offsets=[0, 75], new_offset=250)
    assert third["kv"] == counts(placed=200)
    said = kv_client.decode(HEADER, third["id"], second, offsets=[50, 0], new_offset=200)
    ours = [make(reference, own) for own in long[:2]]
    theirs = make(reference, long[2], [(ours[1], 0), (ours[0], 75)], 250)
    assert_likeliest(reference, said, HEADER, [(theirs, 50), (ours[1], 0)])


# Lists and streams.


def test_calls_in_a_list_are_answered_in_its_order(kv_client: KvClient) -> None:
    calls = [{"tokens": tokens(220 + number, 5 + number)} for number in range(5)]
    made = kv_client.post("/hive/prefill", {"calls": calls})["results"]
    assert [message["tokens"] for message in made] == [5, 6, 7, 8, 9]
    params = {"max_new_tokens": 5, "ignore_eos": True, "temperature": 1.0}
    decodes = [
        {"header_tokens": HEADER, "parents": [message["id"]], "sampling_params": params} for message in made
    ]
    said = kv_client.post("/hive/decode", {"calls": decodes})["results"]
    assert [message["offset"] for message in said] == [5, 6, 7, 8, 9]
    assert {message["tokens"] for message in said} == {len(HEADER) + 5}


def test_a_stream_says_what_an_answer_does(kv_client: KvClient) -> None:
    params = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}
    body = {"header_tokens": HEADER, "sampling_params": params}
    whole = kv_client.post("/hive/decode", body)
    with kv_client.stream("/hive/decode", body) as events:
        pieces = list(events)
    *before, last = pieces
    assert len(before) >= 4
    for earlier, later in zip(before, pieces[1:], strict=True):
        assert later["output_ids"][: len(earlier["output_ids"])] == earlier["output_ids"]
        assert later["id"] == earlier["id"]
        assert earlier["meta_info"]["finish_reason"] is None
    for key in ("output_ids", "text", "tokens", "offset", "end", "finish_reason", "kv"):
        assert last[key] == whole[key]
    assert kv_client.decode(HEADER, last["id"])["kv"]["placed"] == last["tokens"]
    # A list: each piece says which call's it is.
    with kv_client.stream("/hive/decode", {"calls": [body, {**body, "header_tokens": HEADER[:5]}]}) as events:
        ends = [piece for piece in events if piece["meta_info"]["finish_reason"] is not None]
    assert sorted((end["index"], end["tokens"]) for end in ends) == [(0, 18), (1, 13)]
    request = {**body, "stream": True}
    with kv_client.http.stream("POST", "/hive/decode", json=request) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert [line for line in answer.iter_lines() if line][-1] == "data: [DONE]"


# Names, owners, and ends.


def test_messages_may_have_ids_of_their_own(kv_client: KvClient) -> None:
    made = kv_client.prefill(SYSTEM, id="minutes/1")
    assert made["id"] == "minutes/1"
    assert kv_client.decode(HEADER, "minutes/1", id="minutes/2")["id"] == "minutes/2"
    refused(kv_client.raw("/hive/prefill", {"tokens": QUERY, "id": "minutes/1"}), "id")
    for id in ("minutes/1", "minutes/2"):
        deleted = kv_client.http.delete(f"/hive/messages/{id}")
        assert deleted.json()["id"] == id
        assert kv_client.http.delete(f"/hive/messages/{id}").status_code == 404
    # An id that was given back is free, and what it names is new.
    again = kv_client.prefill(QUERY, id="minutes/1")
    said = kv_client.decode(HEADER, "minutes/1")
    assert said["output_ids"] == kv_client.generate([*QUERY, *HEADER], new=8).ids
    assert said["kv"] == counts(placed=again["tokens"])
    kv_client.http.delete("/hive/messages/minutes/1")


def test_of_two_calls_at_once_one_gets_an_id(kv_client: KvClient) -> None:
    lengths = [200, 100, 150, 50]
    with ThreadPoolExecutor(len(lengths)) as pool:
        bodies = [{"tokens": tokens(230 + length, length), "id": "wanted"} for length in lengths]
        answers = list(pool.map(lambda body: kv_client.raw("/hive/prefill", body), bodies))
    assert sorted(answer.status_code for answer in answers) == [200, 400, 400, 400]
    (made,) = [answer.json() for answer in answers if answer.status_code == 200]
    for answer in answers:
        if answer.status_code == 400:
            refused(answer, "id")
    assert kv_client.decode(HEADER, "wanted")["kv"] == counts(placed=made["tokens"])
    kv_client.http.delete("/hive/messages/wanted")


def test_a_call_that_failed_gives_its_id_back(kv_client: KvClient) -> None:
    params = {"max_new_tokens": 400, "ignore_eos": True}
    body = {"header_tokens": HEADER, "sampling_params": params, "id": "given"}
    with kv_client.stream("/hive/decode", body) as events:
        next(events)
    for _ in range(100):
        answer = kv_client.raw("/hive/prefill", {"tokens": HEADER, "id": "given"})
        if answer.status_code == 200:
            break
    assert answer.status_code == 200, answer.text
    kv_client.http.delete("/hive/messages/given")


def test_a_deleted_message_is_gone_and_what_was_made_with_it_stays(kv_client: KvClient) -> None:
    kv_client.flush()
    parent = kv_client.prefill(SYSTEM)["id"]
    child = kv_client.prefill(QUERY, parent)
    before = kv_client.decode(HEADER, child["id"])
    stored = kv_client.store()["segments"]
    deleted = kv_client.http.delete(f"/hive/messages/{parent}")
    assert deleted.json() == {"id": parent, "tokens": len(SYSTEM)}
    assert kv_client.store()["segments"] == stored - 1
    refused(kv_client.raw("/hive/decode", {"header_tokens": HEADER, "parents": [parent]}), "parents[0]")
    assert kv_client.decode(HEADER, child["id"])["output_ids"] == before["output_ids"]


def test_messages_end_with_their_session(kv_client: KvClient) -> None:
    kv_client.flush()
    there = kv_client.store()["tokens"]
    tags = {"session": "meeting", "tenant": "ann"}
    made = kv_client.post("/hive/prefill", {"tokens": SYSTEM}, **tags)["id"]
    params = {"max_new_tokens": 5, "ignore_eos": True}
    body = {"header_tokens": HEADER, "parents": [made], "sampling_params": params}
    said = kv_client.post("/hive/decode", body, **tags)["id"]
    other = kv_client.post("/hive/prefill", {"tokens": QUERY}, tenant="ann", session="other")["id"]
    assert kv_client.store()["tokens"] == there + 40 + 15 + 60
    headers = {"x-hive-tenant": "ann"}
    assert kv_client.http.delete("/hive/sessions/meeting", headers=headers).status_code == 200
    for gone in made, said:
        answer = kv_client.raw("/hive/decode", {**body, "parents": [gone]}, tenant="ann")
        refused(answer, "parents[0]")
    assert kv_client.store()["tokens"] == there + 60
    kept = kv_client.post("/hive/decode", {**body, "parents": [other]}, tenant="ann")
    assert kept["kv"] == counts(placed=60)


def test_a_tenant_has_its_messages_to_itself(kv_client: KvClient) -> None:
    kv_client.flush()
    mine = kv_client.post("/hive/prefill", {"tokens": SYSTEM, "id": "mine"}, tenant="ann")["id"]
    for tags in ({"tenant": "bob"}, {}):
        answer = kv_client.raw("/hive/prefill", {"tokens": QUERY, "parents": [mine]}, **tags)
        refused(answer, "parents[0]")
    assert kv_client.http.delete(f"/hive/messages/{mine}").status_code == 404
    # The name is another tenant's, too.
    other = kv_client.post("/hive/prefill", {"tokens": QUERY, "id": "mine"}, tenant="bob")
    assert other["tokens"] == len(QUERY)
    body = {"header_tokens": HEADER, "parents": ["mine"], "sampling_params": {"max_new_tokens": 1}}
    said = [kv_client.post("/hive/decode", body, tenant=tenant) for tenant in ("ann", "bob")]
    assert [answer["kv"]["placed"] for answer in said] == [len(SYSTEM), len(QUERY)]
    for tenant in ("ann", "bob"):
        headers = {"x-hive-tenant": tenant}
        assert kv_client.http.delete("/hive/messages/mine", headers=headers).status_code == 200


def test_messages_are_no_segments_of_ordinary_requests(kv_client: KvClient) -> None:
    kv_client.flush()
    kv_client.prefill(QUERY)
    answer = kv_client.generate([*SYSTEM, *QUERY, 5], {"spans": [span(40, 100)], "corrector": "none"}, new=1)
    assert answer.kv == counts(missing=60)
    assert kv_client.generate([*QUERY, 5], new=1).cached == 0, "nor prefixes"


# Bad requests.

BAD: list[tuple[str, dict[str, Any], str]] = [
    ("prefill", {}, "text"),
    ("prefill", {"text": ""}, "text"),
    ("prefill", {"text": 5}, "text"),
    ("prefill", {"text": "x", "tokens": [5]}, "text"),
    ("prefill", {"tokens": []}, "tokens"),
    ("prefill", {"tokens": [-1]}, "tokens[0]"),
    ("prefill", {"tokens": [10**6]}, "tokens[0]"),
    ("prefill", {"tokens": [5], "parent": []}, "parent"),
    ("prefill", {"tokens": [5], "parents": "known"}, "parents"),
    ("prefill", {"tokens": [5], "parents": [7]}, "parents[0]"),
    ("prefill", {"tokens": [5], "parents": ["known", "nobody"]}, "parents[1]"),
    ("prefill", {"tokens": [5], "parents": ["known", "known"]}, "parents[1]"),
    ("prefill", {"tokens": [5], "id": "itself", "parents": ["itself"]}, "parents[0]"),
    ("prefill", {"tokens": [5], "id": "known"}, "id"),
    ("prefill", {"tokens": [5], "id": "two words"}, "id"),
    ("prefill", {"tokens": [5], "id": 5}, "id"),
    ("prefill", {"tokens": [5], "offsets": [0]}, "offsets"),
    ("prefill", {"tokens": [5], "parents": ["known"], "offsets": []}, "offsets"),
    ("prefill", {"tokens": [5], "parents": ["known"], "offsets": 0}, "offsets"),
    ("prefill", {"tokens": [5], "parents": ["known"], "offsets": [-1]}, "offsets[0]"),
    ("prefill", {"tokens": [5], "parents": ["known"], "offsets": [0.5]}, "offsets[0]"),
    ("prefill", {"tokens": [5], "parents": ["known"], "offsets": [1000]}, "offsets[0]"),
    ("prefill", {"tokens": [5], "new_offset": True}, "new_offset"),
    ("prefill", {"tokens": [5], "new_offset": -1}, "new_offset"),
    ("prefill", {"tokens": [5], "new_offset": CONTEXT_LENGTH - 1}, "new_offset"),
    ("prefill", {"tokens": [5] * CONTEXT_LENGTH}, "parents"),
    ("prefill", {"tokens": [5], "sampling_params": {}}, "sampling_params"),
    ("prefill", {"tokens": [5], "lora_path": 5}, "lora_path"),
    ("prefill", {"calls": []}, "calls"),
    ("prefill", {"calls": [5]}, "calls[0].call"),
    ("prefill", {"calls": [{"text": "x"}], "id": "x"}, "id"),
    ("prefill", {"calls": [{"text": "x"}, {"text": ""}]}, "calls[1].text"),
    (
        "prefill",
        {"calls": [{"text": "x", "id": "new"}, {"text": "y", "parents": ["new"]}]},
        "calls[1].parents[0]",
    ),
    ("prefill", {"calls": [{"text": "x", "id": "new"}, {"text": "y", "id": "new"}]}, "calls[0].id"),
    ("decode", {}, "header"),
    ("decode", {"header": ""}, "header"),
    ("decode", {"header": "x", "header_tokens": [5]}, "header"),
    ("decode", {"header_tokens": "x"}, "header_tokens"),
    ("decode", {"header": "x", "text": "y"}, "text"),
    ("decode", {"header": "x", "parents": ["nobody"]}, "parents[0]"),
    ("decode", {"header": "x", "parents": ["known"], "offsets": [5000]}, "offsets[0]"),
    ("decode", {"header": "x", "new_offset": CONTEXT_LENGTH}, "new_offset"),
    ("decode", {"header": "x", "new_offset": CONTEXT_LENGTH - 5}, "sampling_params.max_new_tokens"),
    ("decode", {"header": "x", "corrector": "best"}, "corrector"),
    ("decode", {"header": "x", "corrector": {"kind": "blend", "share": 2}}, "corrector.share"),
    ("decode", {"header": "x", "sampling_params": []}, "sampling_params"),
    ("decode", {"header": "x", "sampling_params": {"max_tokens": 5}}, "sampling_params.max_tokens"),
    ("decode", {"header": "x", "sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
    ("decode", {"header": "x", "sampling_params": {"n": 2}}, "sampling_params.n"),
    (
        "decode",
        {"header": "x", "sampling_params": {"custom_params": {"hive_segments": {}}}},
        "sampling_params.custom_params.hive_segments",
    ),
    (
        "decode",
        {"header": "x", "sampling_params": {"custom_params": {"hive_kv": ""}}},
        "sampling_params.custom_params.hive_kv",
    ),
    (
        "decode",
        {"header": "x", "sampling_params": {"max_new_tokens": CONTEXT_LENGTH}},
        "sampling_params.max_new_tokens",
    ),
    ("decode", {"header": "x", "sampling_params": {"max_new_tokens": 0}}, "sampling_params.max_new_tokens"),
    ("decode", {"header": "x", "stream": "yes"}, "stream"),
    ("decode", {"calls": [{"header": "x", "stream": True}]}, "calls[0].stream"),
    ("decode", {"calls": [{"header": "x"}], "stream": 1}, "stream"),
    ("prefill", {"calls": [{"text": "x"}], "stream": True}, "stream"),
]


@pytest.fixture(scope="module")
def known(kv_client: KvClient) -> Iterator[None]:
    kv_client.prefill(SYSTEM, id="known")
    yield
    kv_client.http.delete("/hive/messages/known")


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(("call", "body", "param"), BAD, ids=lambda value: str(value)[:60])
def test_bad_calls_are_refused(kv_client: KvClient, call: str, body: dict[str, Any], param: str) -> None:
    bodies = [body]
    if call == "decode" and "stream" not in body and "calls" not in body:
        bodies.append({**body, "stream": True})
    for asked in bodies:
        refused(kv_client.raw(f"/hive/{call}", asked), param)


def test_an_adapter_that_the_server_has_not_is_refused(kv_client: KvClient) -> None:
    call = {"header": "x", "lora_path": "nobody"}
    for body, at in ((call, ""), ({**call, "stream": True}, ""), ({"calls": [call]}, "calls[0].")):
        refused(kv_client.raw("/hive/decode", body), f"{at}lora_path")


def test_bodies_that_are_no_objects_are_refused(kv_client: KvClient) -> None:
    for call in ("prefill", "decode"):
        for content in ("[]", "5", "{", ""):
            answer = kv_client.http.post(f"/hive/{call}", content=content)
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["param"]


def test_without_the_flag_the_routes_name_it(server: ServerProcess) -> None:
    client = KvClient(server)
    for call, body in (("prefill", {"text": "x"}), ("decode", {"header": "x"})):
        answer = client.raw(f"/hive/{call}", body)
        refused(answer, "path")
        assert "--hive-kv-segments" in answer.json()["error"]["message"]
    assert client.http.delete("/hive/messages/m-1").status_code == 404
    client.http.close()


# What ends in the middle, and what does not fit.


def test_clients_that_go_away_leave_nothing(kv_client: KvClient) -> None:
    kv_client.flush()
    parent = kv_client.prefill(SYSTEM)["id"]
    stored = kv_client.store()["segments"]
    params = {"max_new_tokens": 400, "ignore_eos": True}
    body = {"header_tokens": HEADER, "parents": [parent], "sampling_params": params}
    with kv_client.stream("/hive/decode", body) as events:
        next(events)
    with pytest.raises(httpx.ReadTimeout):
        kv_client.http.post("/hive/decode", json=body, timeout=1)
    with pytest.raises(httpx.ReadTimeout):
        kv_client.http.post("/hive/decode", json={"calls": [body] * 3}, timeout=1)
    kv_client.assert_sound()
    assert kv_client.store()["segments"] == stored


def test_aborted_calls_say_so(kv_client: KvClient) -> None:
    kv_client.flush()
    params = {"max_new_tokens": 400, "ignore_eos": True}
    body = {"header_tokens": HEADER, "sampling_params": params}
    with ThreadPoolExecutor(1) as pool, kv_client.stream("/hive/decode", body) as events:
        next(events)
        other = pool.submit(kv_client.raw, "/hive/decode", {"calls": [body, body]})
        while kv_client.store()["segments"] or not other.running():
            pass
        threading.Event().wait(1.0)
        kv_client.http.post("/abort_request", json={"abort_all": True})
        last = list(events)[-1]
        assert "error" in last, last
        answer = other.result()
    assert answer.status_code >= 500
    assert answer.json()
    assert kv_client.store()["segments"] == 0


@pytest.mark.long
def test_what_is_retracted_says_what_it_would_have_said(kv_client: KvClient) -> None:
    """Five requests fit the pool when they begin, and grow by more than there is room for."""
    kv_client.flush()
    shared = tokens(2000, 60)
    kv_client.generate([*shared, 5], {"spans": [span(0, 60)]}, new=1)

    def ask(number: int) -> Answer:
        ids = [*tokens(2100 + number, 30), *shared, *tokens(2200 + number, 130)]
        return kv_client.generate(ids, {"spans": [span(30, 90)], "corrector": "none"}, new=40)

    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(ask, range(5)))
    retracted = [number for number, answer in enumerate(answers) if answer.retractions]
    assert retracted
    kv_client.flush()
    kv_client.generate([*shared, 5], {"spans": [span(0, 60)]}, new=1)
    alone = ask(retracted[0])
    assert alone.retractions == 0
    assert alone.kv == counts(placed=60)
    assert alone.ids == answers[retracted[0]].ids
    assert kv_client.store()["leased_tokens"] == 0


def test_mixed_traffic_in_a_pool_that_is_far_too_small(kv_client: KvClient) -> None:
    """Messages, segments and ordinary requests from threads; some are given up, and sessions end."""
    kv_client.flush()
    system = kv_client.prefill(SYSTEM)["id"]

    def talk(number: int) -> None:
        chance = random.Random(number)
        tags = {"session": f"talk-{number}"}
        params = {"max_new_tokens": 10, "ignore_eos": True, "temperature": 1.0}
        corrector = ("none", "first-k", {"kind": "blend", "block": 16})[number % 3]
        body = {"header_tokens": HEADER, "sampling_params": params, "corrector": corrector}
        made = [system]
        for turn in range(2):
            own = tokens(1000 + 10 * number + turn, chance.randrange(40, 80))
            made.append(kv_client.post("/hive/prefill", {"tokens": own, "parents": made}, **tags)["id"])
            if turn == 0:
                with kv_client.stream("/hive/decode", {**body, "parents": made}) as events:
                    next(events)
        calls = [{**body, "parents": chance.sample(made, 3)} for _ in range(2)]
        results = kv_client.post("/hive/decode", {"calls": calls}, **tags)["results"]
        assert kv_client.http.delete(f"/hive/messages/{results[1]['id']}").status_code == 200
        assert kv_client.http.delete(f"/hive/sessions/talk-{number}").status_code == 200

    def place(number: int) -> None:
        shared, before = tokens(2000 + number // 2, 60), tokens(2100 + number, 30 + number)
        asked = {
            "spans": [span(len(before), len(before) + 60)],
            "context": ("producer", "standalone")[number // 2],
            "keep_output": True,
        }
        kv_client.generate([*before, *shared, 5], asked, new=10)

    def ask(number: int) -> None:
        kv_client.generate(tokens(3000 + number, 100), new=10)

    with ThreadPoolExecutor(9) as pool:
        jobs = [pool.submit(work, number) for number in range(3) for work in (talk, place, ask)]
        for job in jobs:
            job.result()
    kv_client.assert_sound()
    said = kv_client.decode(HEADER, system)
    assert said["output_ids"] == kv_client.generate([*SYSTEM, *HEADER], new=8).ids
    kv_client.flush()
    kv_client.assert_sound()
    assert kv_client.store()["tokens"] == 0
