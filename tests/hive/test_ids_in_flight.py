"""Ids of requests in flight: taken all or none, and free again when their request is over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hive.server.request_checks.ids_in_flight import IdsInFlight
from hive.server.request_tag import RequestError

_NAMES = st.sampled_from("abc")


@given(
    st.lists(
        st.one_of(
            st.none(),
            _NAMES,
            st.lists(_NAMES, unique=True),
            st.integers(0, 5),  # the end of a request
        )
    )
)
def test_no_id_is_taken_twice(steps: list[str | list[str] | int | None]) -> None:
    ids, claims = IdsInFlight(), list[list[str]]()
    for step in steps:
        taken = {name for claim in claims for name in claim}
        assert len(ids) == len(taken)
        if isinstance(step, int):
            if step < len(claims):
                ids.release(claims.pop(step))
            continue
        wanted = [step] if isinstance(step, str) else step or []
        if taken.intersection(wanted):
            with pytest.raises(RequestError, match=r"^rid must not be that of a request in flight"):
                ids.claim(step)
        else:
            claims.append(ids.claim(step))
    for claim in claims:
        ids.release(claim)
    assert len(ids) == 0
