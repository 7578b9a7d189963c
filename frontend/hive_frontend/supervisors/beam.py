"""Beam search over named states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hive_frontend.compiler.flow_graph import FlowGraph
from hive_frontend.operations.identity import Path
from hive_frontend.supervisors.searcher import Books, Searcher, lineage
from hive_frontend.supervisors.settings import Check
from hive_frontend.supervisors.state import Decision, Drop, Fire, State, by_promise


@dataclass
class BeamBooks(Books):
    results: list[State] = field(default_factory=list)


class Beam(Searcher[BeamBooks]):
    """Keeps the `width` best of all expansions of a generation, and fires each `expand` times.

    A generation is the states called `at` that are their way's n-th, however long the ways are; states with other
    names are fired once as soon as they are there. `cumulative` ranks by the sum of the scores at all
    visits of `at` on the way, the state's own included, and otherwise by its own score alone; ways without any
    score come last.

    Results compete with the states of every generation for the places in the beam, by the same measure. The
    search ends when results hold all places, or when no state is left.

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

    def begin(self) -> BeamBooks:
        return BeamBooks()

    def go_on(self, state: State) -> Fire | None:
        return None if state.name == self.at else Fire(state)

    def decide(self, books: BeamBooks, arrived: list[State]) -> Sequence[Decision]:
        books.results += [state for state in arrived if state.kind == "final"]
        generation = sorted((state for state in arrived if state.kind == "waiting"), key=self._rank)
        beam = {state.path for state in sorted(generation + books.results, key=self._rank)[: self.width]}
        return [Fire(state, times=self.expand) if state.path in beam else Drop(state) for state in generation]

    def _rank(self, state: State) -> tuple[float, Path]:
        if not self.cumulative:
            return by_promise(state)
        scores = [
            each.score
            for each in lineage(state)
            if each.score is not None and (each is state or each.name == self.at)
        ]
        return (-sum(scores) if scores else float("inf"), state.path)
