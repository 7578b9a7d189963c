"""``bench.logits_cache --only toll``: who is asked for what, and how the answer is shown."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from bench.harness.client import BenchError
from bench.logits_cache.toll import LIST, TOKENS, TollRow, _body, _processes, toll_table
from hive.server.request_checks import Limits, check_generate, check_samples
from hive.server.server_process import free_port

LIMITS = Limits(vocab_size=100, context_length=64)


@pytest.mark.parametrize("kind", ["hive", "stock"])
def test_a_list_asks_for_as_many_answers_of_one_prompt(kind: str) -> None:
    path, body = _body(kind, [1, 2, 3], True)  # type: ignore[arg-type]
    fields = json.loads(body)
    (check_samples if path == "/hive/generate" else check_generate)(fields, LIMITS)
    if kind == "hive":
        assert (fields["input_ids"], len(fields["samples"])) == ([1, 2, 3], LIST)
        assert fields["sampling_params"]["max_new_tokens"] == TOKENS
    else:
        assert fields["input_ids"] == [[1, 2, 3]] * LIST
        assert fields["sampling_params"]["max_new_tokens"] == 1


def test_servers_elsewhere_are_refused() -> None:
    with pytest.raises(BenchError, match="no process of this machine listens there"):
        _processes(f"http://127.0.0.1:{free_port()}")


def test_the_table_has_every_process() -> None:
    cpu = {"api": 0.25, "scheduler": 0.5, "detokenizer": 0.125}
    row = TollRow(server="hive", listed=True, requests_per_s=1234.5, cpu_ms=cpu)
    text = io.StringIO()
    Console(file=text, width=120).print(toll_table([row]))
    for part in ("in lists of 20", "0.25", "0.50", "0.12", "1,234"):
        assert part in text.getvalue()
