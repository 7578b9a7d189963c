"""KV that does not suffice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.faults.conftest import POOL, settled
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
