"""LoRA adapters behind one server: the embedded model's roles, side by side, with the Logits Cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from bench.game24 import prompts
from bench.game24.puzzles import puzzles
from bench.game24.rules import apply_step, numbers_of, parse_step, step_regex
from hive.roles import ROLES
from hive.server_process import ServerProcess
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


@pytest.fixture(scope="module")
def roles(launch_server: Callable[..., ServerProcess]) -> Iterator[ReplayClient]:
    server = launch_server("--hive-roles", "--dtype", "float32", "--api-key", KEY)
    client = ReplayClient(server.url)
    yield client
    client.http.close()
    server.stop()


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
        ask = Ask("Step from 4 4 6 8: ", {"temperature": 0.0}, {"lora_path": adapter} if adapter else {})
        plain, first = (roles.generate(ask, policy) for policy in ("off", "stepwise"))
        first.assert_same(plain)
        assert first.replayed == 0
        said[adapter] = first.text
    assert len(set(said.values())) > 1


def test_requests_for_all_adapters_share_batches(roles: ReplayClient) -> None:
    asks = [
        Ask(f"Value of {number} 3 8: ", {"temperature": 0.0}, {"lora_path": adapter} if adapter else {})
        for number in (1, 2, 5)
        for adapter in (None, *ROLES)
    ]
    alone = [roles.generate(ask, "off") for ask in asks]
    with ThreadPoolExecutor(len(asks)) as threads:
        together = list(threads.map(lambda ask: roles.generate(ask), asks))
    assert [answer.ids for answer in together] == [answer.ids for answer in alone]


def test_an_adapter_that_is_not_served_is_named(roles: ReplayClient) -> None:
    ask = Ask("Step from 4 4 6 8: ", {}, {"lora_path": "cook"})
    answer = roles.http.post("/generate", json=ask.body("stepwise"))
    assert answer.status_code == 400
    assert "cook" in answer.text
    assert roles.http.get("/health").status_code == 200
