"""Self-Refine: refine a draft again and again, and keep only improvements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hive_frontend.compiler.flow_graph import FlowGraph
from hive_frontend.supervisors.searcher import Searcher, SearchProgress
from hive_frontend.supervisors.settings import Check
from hive_frontend.supervisors.state import Decision, Drop, Fire, State, best_first


@dataclass
class SelfRefineProgress(SearchProgress):
    parent: State | None = None
    """The state that is being refined."""
    children: list[State] = field(default_factory=list)
    """Its refinements so far, best first; while finishing, the states to finish from."""
    retries: int = 0
    """Times that `parent` was fired again without an improvement."""
    finishing: bool = False
    """Whether refinement is over and the best state runs on to its result."""


class SelfRefine(Searcher[SelfRefineProgress]):
    """Self-refine: draw `samples` refinements of a state named `at`; continue from the best one if it is better.

    A refinement has the score of the next state named `at` on its branch, or of its result. It is an improvement
    if that score is higher than the score of the refined state, or if the refined state has no score. All other
    refinements are dropped. If none is an improvement, the same state is fired again, up to `patience` times.

    Refinement ends when `patience` is used up, or when a state named `at` scores at least `target`. The best state
    then runs on to its result, every state being fired once; if it dies, the next best runs. A result that is an
    improvement ends the search, too.

    Madaan et al.: Self-Refine: Iterative Refinement with Self-Feedback, 2023.
    """

    def __init__(self, *, at: str, samples: int = 1, patience: int = 2, target: float | None = None) -> None:
        check = Check(self)
        self.at = check.name("at", at)
        self.samples = check.count("samples", samples)
        self.patience = check.count("patience", patience, least=0)
        self.target = check.optional(check.number, "target", target)

    def check(self, graph: FlowGraph) -> None:
        Check(self).known(graph, "at", self.at)

    def begin(self) -> SelfRefineProgress:
        return SelfRefineProgress()

    def advance(self, state: State) -> Fire | None:
        return None if state.name == self.at else Fire(state)

    def decide(self, progress: SelfRefineProgress, arrived: list[State]) -> Sequence[Decision]:
        alive = [state for state in arrived if state.kind != "dead"]
        if progress.finishing:
            return self._finish(progress, alive)
        progress.children = sorted(progress.children + alive, key=best_first)
        if progress.children and _is_better(progress.children[0], progress.parent):
            return self._refine(progress)
        if progress.parent is not None and progress.retries < self.patience:
            progress.retries += 1
            return [self._draw(progress, progress.parent)]
        return self._finish(progress, [])

    def _refine(self, progress: SelfRefineProgress) -> list[Decision]:
        best, *others = progress.children
        if best.kind == "final" or (
            self.target is not None and best.score is not None and best.score >= self.target
        ):
            return self._finish(progress, [])
        given_up = [state for state in others if state.kind == "waiting"]
        if progress.parent is not None and progress.parent.path in progress.open:
            given_up.append(progress.parent)
        progress.parent, progress.children, progress.retries = best, [], 0
        return [*(Drop(state) for state in given_up), self._draw(progress, best)]

    def _draw(self, progress: SelfRefineProgress, state: State) -> Fire:
        return Fire(state, times=self.samples, last=progress.retries == self.patience)

    def _finish(self, progress: SelfRefineProgress, alive: list[State]) -> list[Decision]:
        progress.finishing = True
        progress.children = alive + progress.children
        if not progress.children or progress.children[0].kind == "final":
            return []
        return [Fire(progress.children.pop(0))]


def _is_better(child: State, parent: State | None) -> bool:
    if parent is None:
        return True
    return child.score is not None and (parent.score is None or child.score > parent.score)
