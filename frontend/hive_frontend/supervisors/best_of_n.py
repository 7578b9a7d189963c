"""Best-of-n: run the whole agent n times, keep the best result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hive_frontend.compiler.flow_graph import FlowGraph
from hive_frontend.supervisors.searcher import Searcher, SearchProgress
from hive_frontend.supervisors.settings import Check
from hive_frontend.supervisors.state import Decision, Fire, State


@dataclass
class BestOfNProgress(SearchProgress):
    sources: list[State] = field(default_factory=list)
    """The states that samples are drawn from."""
    drawn: int = 0
    """Samples drawn so far from each source."""
    best: float = float("-inf")


class BestOfN(Searcher[BestOfNProgress]):
    """Best-of-n sampling: run the agent `n` times; the result with the best score wins.

    The first state, or the first one named `at`, is fired `n` times, every other state once. All samples run
    concurrently, unless `target` is given: then they run in batches of `batch`, and sampling stops after the
    first batch with a result that scores at least `target`. The check is between batches, so the outcome does not
    depend on which sample of a batch finishes first.

    Stiennon et al.: Learning to Summarize from Human Feedback, 2020; Cobbe et al.: Training Verifiers to Solve
    Math Word Problems, 2021.
    """

    def __init__(
        self, n: int, *, at: str | None = None, target: float | None = None, batch: int | None = None
    ) -> None:
        check = Check(self)
        self.n = check.count("n", n)
        self.at = check.optional(check.name, "at", at)
        self.target = check.optional(check.number, "target", target)
        self.batch = check.optional(check.count, "batch", batch)
        if (target is None) != (batch is None):
            raise check.error(
                "target and batch go together: target is checked after each batch; set both or none"
            )

    def check(self, graph: FlowGraph) -> None:
        if self.at is not None:
            Check(self).known(graph, "at", self.at)

    def begin(self) -> BestOfNProgress:
        return BestOfNProgress()

    def advance(self, state: State) -> Fire | None:
        first = (
            state.parent is None if self.at is None else state.name == self.at and state.visits[self.at] == 1
        )
        return None if first else Fire(state)

    def decide(self, progress: BestOfNProgress, arrived: list[State]) -> Sequence[Decision]:
        progress.sources += [state for state in arrived if state.kind == "waiting"]
        for state in arrived:
            if state.kind == "final" and state.score is not None:
                progress.best = max(progress.best, state.score)
        if self.target is not None and progress.best >= self.target:
            return []
        times = min(self.batch or self.n, self.n - progress.drawn)
        if not times:
            return []
        progress.drawn += times
        return [Fire(state, times=times, last=progress.drawn == self.n) for state in progress.sources]
