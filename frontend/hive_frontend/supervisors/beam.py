"""Beam search over named states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hive_frontend.compiler.flow_graph import FlowGraph
from hive_frontend.operations.identity import Path
from hive_frontend.supervisors.searcher import Searcher, SearchProgress, lineage
from hive_frontend.supervisors.settings import Check
from hive_frontend.supervisors.state import Decision, Drop, Fire, State, best_first


@dataclass
class BeamProgress(SearchProgress):
    results: list[State] = field(default_factory=list)


class Beam(Searcher[BeamProgress]):
    """Beam search: keep the `width` best states of each generation, and expand each by `expand` samples.

    `width` is the beam width, `expand` the branching factor. Generation n consists of the states named `at` that
    are the n-th state of that name on their branch, whatever the length of the branch. States with other names
    are fired once, as soon as they are reached.

    With `cumulative`, states are ranked by the sum of the scores at all states named `at` on their branch,
    including their own; otherwise by their own score only. Branches without any score rank last.

    Results compete for places in the beam with the states of every generation, by the same ranking. The search
    ends when results fill the beam, or when no state is left.

    Xie et al.: Self-Evaluation Guided Beam Search for Reasoning, 2023.
    """

    def __init__(self, *, at: str, width: int = 5, expand: int = 5, cumulative: bool = True) -> None:
        check = Check(self)
        self.at = check.name("at", at)
        self.width = check.count("width", width)
        self.expand = check.count("expand", expand)
        self.cumulative = check.flag("cumulative", cumulative)

    def check(self, graph: FlowGraph) -> None:
        Check(self).known(graph, "at", self.at)

    def begin(self) -> BeamProgress:
        return BeamProgress()

    def advance(self, state: State) -> Fire | None:
        return None if state.name == self.at else Fire(state)

    def decide(self, progress: BeamProgress, arrived: list[State]) -> Sequence[Decision]:
        progress.results += [state for state in arrived if state.kind == "final"]
        generation = sorted((state for state in arrived if state.kind == "waiting"), key=self._rank)
        beam = {state.path for state in sorted(generation + progress.results, key=self._rank)[: self.width]}
        return [Fire(state, times=self.expand) if state.path in beam else Drop(state) for state in generation]

    def _rank(self, state: State) -> tuple[float, Path]:
        if not self.cumulative:
            return best_first(state)
        scores = [
            each.score
            for each in lineage(state)
            if each.score is not None and (each is state or each.name == self.at)
        ]
        return (-sum(scores) if scores else float("inf"), state.path)
