"""What an example's main does to its process is undone after each test."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def keep_log_level() -> Iterator[None]:
    """The examples silence the frontend's log: right for a program, wrong for the tests that come after."""
    log = logging.getLogger("hive_frontend")
    level = log.level
    yield
    log.setLevel(level)
