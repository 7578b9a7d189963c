"""The table of metrics is what the code registers, and the dashboard asks for nothing else."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest

from tests.docs.metrics_pages import Metric, dashboard, documented, expressions, names_in

REGISTERED = """
import json
from sglang_patches.scheduling.metrics import SchedulerMetrics
from prometheus_client import REGISTRY

SchedulerMetrics()
found = {}
for metric in set(REGISTRY._names_to_collectors.values()):
    name = getattr(metric, "_name", "")
    if name.startswith("hive_"):
        suffix = "_total" if metric._type == "counter" else ""
        found[name + suffix] = [metric._type, metric._labelnames, metric._documentation]
print(json.dumps(found))
"""


@pytest.mark.skipif(importlib.util.find_spec("prometheus_client") is None, reason="needs the server extra")
def test_the_table_is_what_the_code_registers() -> None:
    # A process of its own: metrics can be registered once, and others may have done so here.
    environment = {name: value for name, value in os.environ.items() if name != "PROMETHEUS_MULTIPROC_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", REGISTERED], capture_output=True, text=True, check=True, env=environment
    )
    registered = {
        name: Metric(kind, tuple(labels), text)
        for name, (kind, labels, text) in json.loads(done.stdout.splitlines()[-1]).items()
    }
    assert documented() == registered


def test_the_dashboard_asks_for_documented_metrics_and_labels() -> None:
    known = documented()
    asked = set()
    for expression in expressions():
        names = names_in(expression)
        assert names, expression
        assert names <= known.keys(), expression
        asked |= names
        for name, selector in re.findall(r"(hive_\w+)\{(.*?)\}", expression):
            labels = set(re.findall(r"(\w+)(?:=|!=)~?\"", selector))
            assert labels <= {*known[name].labels, "instance"}, expression
        for group in re.findall(r"by \((\w+)\)", expression):
            assert all(group in known[name].labels for name in names), expression
    assert asked == known.keys(), "every metric is to be seen somewhere"


def test_names_are_found_in_expressions() -> None:
    assert names_in('sum by (agent) (rate(a_total{x="b_total"}[5m])) / max(c_d)') == {"a_total", "c_d"}
    assert names_in('label_values(a_total{i=~"$i"}, agent)') == {"a_total"}


def test_panels_do_not_overlap_and_say_what_they_show() -> None:
    board = dashboard()
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        mine = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not mine & cells, panel["title"]
        assert max(x for x, _ in mine) < 24
        cells |= mine
        assert panel["title"]
        if panel["type"] != "row":
            assert panel["description"].endswith(".")
            assert panel["datasource"]["uid"] == "${datasource}"
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
