"""LoRA adapters behind one server: the embedded model's roles, side by side, with the Logits Cache and KV segments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from examples.game24 import prompts
from examples.game24.puzzles import puzzles
from examples.game24.rules import apply_step, numbers_of, parse_step, step_regex
from hive.server.roles import ROLES
from hive.server.server_process import ServerProcess
from tests.repetitions import repetitions
from tests.server.kv_client import KvClient, counts, span, tokens
from tests.server.replay_client import KEY, Ask, ReplayClient

pytestmark = pytest.mark.server

PUZZLES = [puzzle.numbers for puzzle in puzzles(900, 906)]
STEPS = [
    Ask(
        prompts.propose_role(numbers),
        {"regex": step_regex(numbers), "stop": "=", "temperature": 1.0, "sampling_seed": 7},
        {"lora_path": "proposer"},
    )
    for numbers in PUZZLES
]
WORTH = {"regex": "|".join(prompts.WORTH), "max_new_tokens": 4, "temperature": 0.0}


ADAPTERS = (None, *ROLES)
FIRST, SECOND, THIRD, HEADER = tokens(301, 40), tokens(302, 30), tokens(303, 25), tokens(304, 6)
"""What agents say to each other."""


def of(adapter: str | None) -> dict[str, Any]:
    """The field of a request."""
    return {"lora_path": adapter} if adapter else {}


@pytest.fixture(scope="module")
def roles(roles_server: ServerProcess) -> Iterator[ReplayClient]:
    client = ReplayClient(roles_server.url)
    yield client
    client.http.close()


@pytest.fixture(scope="module")
def kv(roles_server: ServerProcess) -> Iterator[KvClient]:
    client = KvClient(roles_server, KEY)
    client.flush()
    yield client
    client.assert_sound()
    client.http.close()


def test_the_proposer_writes_legal_steps_and_its_samples_are_replayed(roles: ReplayClient) -> None:
    replayed = 0
    for numbers, ask in zip(PUZZLES, STEPS, strict=True):
        plain = roles.generate(ask, "off")
        for _ in range(2):
            cached = roles.generate(ask)
            cached.assert_same(plain)
        replayed += cached.replayed
        assert apply_step(numbers, parse_step(plain.text))
    assert replayed > 0


def test_the_valuer_tells_what_reaches_24_from_what_does_not(roles: ReplayClient) -> None:
    right = 0
    for numbers, says in (
        ([3, 8], "sure"),
        ([2, 5], "impossible"),
        ([2, 3, 4], "sure"),
        ([1, 1, 1], "impossible"),
    ):
        ask = Ask(prompts.value_role(numbers_of(numbers)), WORTH, {"lora_path": "valuer"})
        right += roles.generate(ask).text == says
    assert right >= 3


def test_what_one_adapter_would_say_is_never_replayed_for_another(roles: ReplayClient) -> None:
    said = {}
    for adapter in (None, *ROLES):
        ask = Ask("Step from 4 4 6 8: ", {"temperature": 0.0}, of(adapter))
        plain, first = (roles.generate(ask, policy) for policy in ("off", "stepwise"))
        first.assert_same(plain)
        assert first.replayed == 0
        said[adapter] = first.text
    assert len(set(said.values())) > 1


def test_requests_for_all_adapters_share_batches(roles: ReplayClient) -> None:
    asks = [
        Ask(
            f"Value of {number} 3 8: ",
            {"temperature": 0.0, "max_new_tokens": repetitions(6, 128)},
            of(adapter),
        )
        for number in (1, 2, 5)
        for adapter in (None, *ROLES)
    ]
    alone = [roles.generate(ask, "off") for ask in asks]
    with ThreadPoolExecutor(len(asks)) as threads:
        together = list(threads.map(lambda ask: roles.generate(ask), asks))
    assert [answer.ids for answer in together] == [answer.ids for answer in alone]


def test_samples_of_an_adapter_travel_together(roles: ReplayClient) -> None:
    ask = STEPS[0]
    samples = [{"sampling_seed": seed} for seed in range(4)]
    shared = {name: value for name, value in ask.params.items() if name != "sampling_seed"}
    body = {**ask.fields, "text": ask.prompt, "sampling_params": {**shared, "max_new_tokens": 16}}
    answer = roles.http.post("/hive/generate", json={**body, "samples": samples})
    lines = {line["index"]: line for line in map(json.loads, answer.text.splitlines())}
    for index, sample in enumerate(samples):
        alone = Ask(ask.prompt, {**ask.params, **sample}, ask.fields)
        assert lines[index]["output_ids"] == roles.generate(alone, "off").ids


def test_an_adapter_that_is_not_served_is_named(roles: ReplayClient) -> None:
    ask = Ask("Step from 4 4 6 8: ", {}, {"lora_path": "cook"})
    answer = roles.http.post("/generate", json=ask.body("stepwise"))
    assert answer.status_code == 400
    assert "cook" in answer.text
    assert roles.http.get("/health").status_code == 200


# Segments of adapters.


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_chain_of_messages_is_what_its_adapter_would_say(kv: KvClient, adapter: str | None) -> None:
    made: list[str] = []
    for own in (FIRST, SECOND):
        made.append(kv.prefill(own, *made, **of(adapter))["id"])
    said = kv.decode(HEADER, *made, **of(adapter))
    assert said["kv"] == counts(placed=70)
    assert said["output_ids"] == kv.generate([*FIRST, *SECOND, *HEADER], new=8, adapter=adapter).ids


def test_an_encoding_is_of_one_adapter(kv: KvClient) -> None:
    spans = {"spans": [span(10, 40)], "corrector": "none"}
    for adapter in ADAPTERS:
        produced = kv.generate([*tokens(305, 10), *SECOND, 5], spans, new=1, adapter=adapter)
        assert produced.kv == counts(missing=30), "what another adapter computed was found"
    for adapter in ADAPTERS:
        placed = kv.generate([*tokens(306, 10), *SECOND, 5], spans, new=1, adapter=adapter)
        assert placed.kv == counts(placed=30)


@pytest.mark.parametrize("corrector", ["recompute-all", {"kind": "blend", "share": 1.0}], ids=str)
def test_rows_that_are_computed_again_go_through_their_adapters(kv: KvClient, corrector: Any) -> None:
    """One batch of virtual rows, of calls for all adapters, on messages that another adapter has made."""
    first, second, third = (kv.prefill(own, **of("proposer"))["id"] for own in (FIRST, SECOND, THIRD))
    calls = [
        {
            "header_tokens": HEADER,
            "parents": [third, first, second],
            "offsets": [0, 25, 65],
            "sampling_params": {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True},
            "corrector": corrector,
            **of(adapter),
        }
        for adapter in ADAPTERS
    ]
    said = kv.post("/hive/decode", {"calls": calls})["results"]
    for adapter, message in zip(ADAPTERS, said, strict=True):
        again = counts(recomputed=95) if adapter == "proposer" else counts(missing=95)
        assert message["kv"] == again
        exact = kv.generate([*THIRD, *FIRST, *SECOND, *HEADER], new=8, adapter=adapter)
        assert message["output_ids"] == exact.ids
    assert len({tuple(message["output_ids"]) for message in said}) > 1
