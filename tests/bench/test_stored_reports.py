"""The reports in ``bench/results`` load with the readers of their workloads, which know all of their fields."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path

import pytest

from bench.harness.command import HowMade

RESULTS = Path(__file__).parents[2] / "bench" / "results"
METRICS = {"choreography.json", "choreography_log_loss.json"}
"""What ``scripts/train_roles.py`` writes; nothing reads them."""
STORED = sorted(path for path in RESULTS.glob("*/*.json") if path.name not in METRICS)


@pytest.mark.parametrize("path", STORED, ids=lambda path: "/".join(path.parts[-2:]))
def test_a_stored_report_loads_with_its_reader(path: Path) -> None:
    stored = json.loads(path.read_text())
    workload = re.match(r"python -m (bench\.\w+) ", stored["command"])
    assert workload is not None
    reader: type[HowMade] = import_module(f"{workload[1]}.report").Report
    reader.model_validate(stored, extra="forbid")
