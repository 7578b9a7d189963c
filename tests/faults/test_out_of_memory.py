"""KV that does not suffice, and host memory that is no longer what was written to it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from hive.server.server_process import ServerProcess
from tests.faults.conftest import POOL, settled
from tests.faults.processes import ProcessMemory, scheduler_of
from tests.server.replay_client import Ask, ReplayClient

pytestmark = pytest.mark.server

SUBJECTS = ["sea", "sky", "moon", "city", "fox", "king", "clock"]
TOKENS = 32
KNOWN = 12
"""Of each output, tokens that the cache has before all ask at once."""


def test_requests_retracted_for_want_of_room_get_the_outputs_that_they_get_alone(tight: ReplayClient) -> None:
    asks = [
        Ask(
            f"A song about the {subject}:", {"sampling_seed": 3, "max_new_tokens": TOKENS, "ignore_eos": True}
        )
        for subject in SUBJECTS
    ]
    assert len(asks) * TOKENS > POOL
    alone = [tight.generate(ask, "off") for ask in asks]
    for ask in asks:
        tight.generate(replace(ask, params={**ask.params, "max_new_tokens": KNOWN}))
    settled(tight)
    with ThreadPoolExecutor(len(asks)) as pool:
        together = list(pool.map(tight.generate, asks))
    for one, other in zip(together, alone, strict=True):
        one.assert_same(other)
    assert all(answer.replayed >= KNOWN for answer in together)
    assert sum(answer.retractions for answer in together) > 0
    settled(tight)


def test_a_row_that_changed_in_memory_is_dropped_and_computed_again(
    tight_server: ServerProcess, tight: ReplayClient
) -> None:
    params = {"sampling_seed": 9, "max_new_tokens": 12, "ignore_eos": True}
    ask = Ask("The bell of the old town", params, {"return_logprob": True, "top_logprobs_num": 20})
    recorded = tight.generate(ask)
    assert recorded.replayed == 0
    settled(tight)
    # In a kept row the ids stand in the order of their logits, two bytes each.
    hurt = 5
    ids = np.array([entry[1] for entry in recorded.top_logprobs[hurt]], dtype="<u2").tobytes()
    memory = ProcessMemory(scheduler_of(tight_server).pid)
    try:
        found = memory.find(ids)
        for address in found:
            memory.flip(address)
    except PermissionError:
        pytest.skip("this system lets no process look into another one's memory")
    assert found
    before = tight.cache()["rows_corrupt"]
    again = tight.generate(ask)
    again.assert_same(recorded)
    assert again.replayed == hurt
    assert tight.cache()["rows_corrupt"] == before + 1
    known = tight.generate(ask)
    known.assert_same(recorded)
    assert known.replayed == len(known.ids), "the row was recorded anew, and those after it had stayed"
    settled(tight)
