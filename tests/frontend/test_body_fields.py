"""Which answers a call's grammar allows."""

from __future__ import annotations

import pytest
from hive_frontend.client.body_fields import matches_grammar
from hive_frontend.client.contract import Sampling


@pytest.mark.parametrize(
    ("sampling", "text", "finish", "allowed"),
    [
        (Sampling(choices=("yes", "no")), "yes", "stop", True),
        (Sampling(choices=("yes", "no")), "Sure! yes", "stop", False),
        (Sampling(choices=("yes", "no")), "ye", "stop", False),
        (Sampling(choices=("yes", "no")), "ye", "length", True),
        (Sampling(regex="[0-9]+ = [0-9]+"), "1 = 1", "stop", True),
        (Sampling(regex="[0-9]+ = [0-9]+"), "1 + 1", "stop", False),
        (Sampling(regex="[0-9]+ = [0-9]+"), "1 =", "length", True),
        # The server takes the stop string away, and whatever the pattern has behind it never comes.
        (Sampling(regex="[0-9]+ = [0-9]+", stop=("=",)), "1 ", "stop", True),
        (Sampling(choices=("yes.", "no."), stop=(".",)), "yes", "stop", True),
        (Sampling(choices=("yes.", "no."), stop=(".",)), "maybe", "stop", False),
        # A dialect that Python does not know.
        (Sampling(regex="(?P<a"), "anything", "stop", True),
        (Sampling(), "anything", "stop", True),
    ],
)
def test_answers_are_whole_or_may_have_been_cut(
    sampling: Sampling, text: str, finish: str, allowed: bool
) -> None:
    assert matches_grammar(sampling, text, finish) is allowed
