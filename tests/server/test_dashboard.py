"""The metrics of the documents and of the dashboard are there when a server has served."""

from __future__ import annotations

import re

import httpx
import pytest

from hive.server.server_process import ServerProcess
from tests.docs.metrics_pages import documented, expressions, names_in

pytestmark = pytest.mark.server


def test_live_metrics_are_the_documented_ones(server: ServerProcess) -> None:
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False, follow_redirects=True) as http:
        for number in range(20):
            tag = {"agent": "dashboard", "session": "d", "replay": "off" if number % 4 == 0 else "stepwise"}
            params = {"max_new_tokens": 4, "temperature": 0.0, "custom_params": {"hive": tag}}
            body = {"text": f"Metric {number % 2} is", "sampling_params": params}
            http.post("/generate", json=body).raise_for_status()
        page = http.get("/metrics").text
    live = set(re.findall(r"^(hive_\w+)[{ ]", page, re.MULTILINE))
    kinds = dict(re.findall(r"^# TYPE (hive_\w+) (\w+)$", page, re.MULTILINE))
    known = documented()
    assert live == known.keys()
    assert kinds == {name: metric.kind for name, metric in known.items()}
    assert set().union(*map(names_in, expressions())) <= live
    labels = set(re.findall(r"^hive_logits_cache_tokens\{([^}]*)\}", page, re.MULTILINE))
    assert any('source="replayed"' in label for label in labels)
