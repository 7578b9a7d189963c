"""The sliding window of rounds, against a recomputation over all that ever happened."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hive.server.agents.contribution import Activity, Contribution, Sharing, contributions
from hive.server.agents.window import HISTORY_AGENTS, HISTORY_ROUNDS, ActivityWindow, WindowSettings


def window(**options: Any) -> ActivityWindow:
    return ActivityWindow(WindowSettings(**{"round_requests": 4, "rounds": 3, **options}))


def request(window: ActivityWindow, agent: str, prompt: int = 10, cached: int = 5, output: int = 5) -> None:
    """One request that has left before the next one arrives."""
    window.arrived(agent, prompt)
    window.left(agent, cached, output)


def test_the_request_after_a_full_round_closes_it() -> None:
    of = window()
    for _ in range(4):
        request(of, "a")
    assert (of.round, of.scores) == (0, {})
    of.arrived("b", 10)
    assert of.round == 1
    assert of.scores.keys() == {"a"}, "the request that closes a round is in the next one"


def test_rounds_close_by_requests_that_arrive_alone() -> None:
    of = window()
    for _ in range(4):
        of.arrived("a", 10)
    for _ in range(4):
        of.left("a", 5, 5)
        of.reused("a", {"b": 3})
    assert of.round == 0
    of.arrived("a", 10)
    assert of.round == 1


def test_an_agent_not_seen_yet_scores_nothing() -> None:
    of = window()
    request(of, "a")
    assert of.score("a") == of.score("stranger") == 0.0
    assert of.history_of("a") == []


def test_scores_are_those_of_the_last_closed_round() -> None:
    of = window(collaborative_weight=0.0)
    for _ in range(4):
        request(of, "a")
    request(of, "b")
    assert of.score("a") == 1.0
    for _ in range(3):
        request(of, "b", prompt=10_000, cached=10_000)
    assert (of.score("a"), of.score("b")) == (1.0, 0.0), "nothing counts before its round has closed"
    request(of, "b")
    assert of.score("b") == 1.0 > of.score("a") > 0.0


def test_an_agent_that_was_idle_for_the_whole_window_has_no_score() -> None:
    of = window()
    request(of, "early")
    for number in range(15):
        assert ("early" in of.scores) == (1 <= of.round <= 3), number
        request(of, "late")
    assert of.history_of("early")[-1][0] == 3


def test_a_request_that_gave_nothing_may_leave_in_a_later_round() -> None:
    # As one that is aborted in the queue does: its last round then holds no activity of the agent.
    of = window(round_requests=1, rounds=2)
    of.arrived("a", 10)
    of.arrived("b", 10)
    of.left("a", 0, 0)
    for _ in range(4):
        request(of, "b")
    assert of.scores.keys() == {"b"}


def test_an_agent_that_only_ends_requests_is_not_active() -> None:
    of = window(round_requests=2, rounds=1)
    of.arrived("slow", 10)
    for _ in range(3):
        request(of, "quick")
    of.left("slow", 5, 500)
    for _ in range(2):
        request(of, "quick")
    assert of.scores.keys() == {"quick"}


def test_the_peak_of_a_window_is_that_of_its_busiest_round() -> None:
    of = window(collaborative_weight=0.0)
    for _ in range(3):
        of.arrived("burst", 10)
    for _ in range(3):
        of.left("burst", 5, 5)
    request(of, "steady")
    peaks = []
    for _ in range(16):
        request(of, "steady")
        peaks.append(of.scores["burst"].concurrency if "burst" in of.scores else None)
    # Mean (1 + 2 + 3) / 3 and peak 3 make 2.5, beside the 1 of requests that run alone.
    assert peaks == [1.0] * 12 + [None] * 4
    assert of.scores["steady"].concurrency == 1.0


def test_requests_that_run_at_once_are_counted_as_they_arrive() -> None:
    of = window(round_requests=6, collaborative_weight=0.0)
    for _ in range(4):
        of.arrived("wide", 10)
    for _ in range(2):
        request(of, "narrow")
    of.arrived("narrow", 10)
    # wide: mean of 1, 2, 3, 4 and peak 4; narrow: 1 and 1.
    assert of.scores["narrow"].concurrency == pytest.approx(1 / ((2.5 + 4) / 2))


def test_what_an_agent_reuses_of_its_own_is_no_edge() -> None:
    of = window()
    of.reused("a", {"a": 100, "b": 0, "c": 7})
    of.reused("a", {"c": 5})
    of.reused("c", {"a": 1})
    assert of.edges() == [
        {"agent": "a", "producer": "c", "tokens": 12, "events": 2},
        {"agent": "c", "producer": "a", "tokens": 1, "events": 1},
    ]


def test_edges_are_bounded_and_those_left_out_are_counted() -> None:
    of = window(max_edges=2)
    of.reused("a", {"b": 1, "c": 1, "d": 1})
    of.reused("a", {"b": 1, "d": 1})
    assert [(edge["producer"], edge["events"]) for edge in of.edges()] == [("b", 2), ("c", 1)]
    assert of.edges_dropped == 2


def test_a_dropped_edge_finds_room_once_others_have_slid_out() -> None:
    of = window(max_edges=1, round_requests=1, rounds=2)
    of.arrived("a", 10)
    of.reused("a", {"b": 1})
    of.reused("a", {"c": 1})
    for _ in range(2):
        of.arrived("a", 10)
    of.reused("a", {"c": 1})
    assert [edge["producer"] for edge in of.edges()] == ["c"]
    assert of.edges_dropped == 1


def test_the_history_is_bounded_in_rounds() -> None:
    of = window(round_requests=1, rounds=1)
    for _ in range(HISTORY_ROUNDS + 10):
        request(of, "a")
    assert [number for number, _ in of.history_of("a")] == list(range(10, HISTORY_ROUNDS + 10))


def test_the_history_keeps_the_best_agents_of_a_round() -> None:
    agents = [f"agent-{number:02}" for number in range(HISTORY_AGENTS + 8)]
    of = window(round_requests=len(agents), collaborative_weight=0.0)
    for number, agent in enumerate(agents):
        request(of, agent, prompt=10 * (number + 1), cached=10 * (number + 1))
    request(of, "next")
    assert len(of.scores) == len(agents)
    ((number, kept),) = of.history
    assert number == 1
    assert kept.keys() == set(agents[8:])
    assert of.history_of(agents[-1]) == [(1, 1.0)]
    assert of.history_of(agents[0]) == []


AGENTS = st.sampled_from("abcde")
TOKENS = st.integers(0, 50)


class WindowMachine(RuleBasedStateMachine):
    """The same events to a window, and to a list that is summed up from its start for every round."""

    @initialize(round_requests=st.integers(1, 3), rounds=st.integers(1, 3), weight=st.floats(0, 1))
    def begin(self, round_requests: int, rounds: int, weight: float) -> None:
        self.settings = WindowSettings(round_requests, rounds, weight)
        self.window = ActivityWindow(self.settings)
        self.running: Counter[str] = Counter()
        self.arrivals = 0
        self.done: list[tuple[int, str, Activity]] = []
        """(round, agent, what it did); an arrival has one request."""
        self.edges: list[tuple[int, tuple[str, str], int]] = []
        """(round, edge, tokens)"""
        self.scores: dict[str, Contribution] = {}

    @rule(agent=AGENTS, prompt=TOKENS)
    def arrive(self, agent: str, prompt: int) -> None:
        if self.arrivals and self.arrivals % self.settings.round_requests == 0:
            self.scores = self.recomputed(self.round)
        self.arrivals += 1
        self.running[agent] += 1
        activity = Activity(requests=1, prompt_tokens=prompt, running=self.running[agent])
        self.done.append((self.round, agent, activity))
        self.window.arrived(agent, prompt)

    @precondition(lambda self: self.running.total())
    @rule(agent=AGENTS, cached=TOKENS, output=TOKENS)
    def leave(self, agent: str, cached: int, output: int) -> None:
        assume(self.running[agent])
        self.running[agent] -= 1
        self.done.append((self.round, agent, Activity(cached_tokens=cached, output_tokens=output)))
        self.window.left(agent, cached, output)

    @rule(agent=AGENTS, producers=st.dictionaries(AGENTS, TOKENS))
    def reuse(self, agent: str, producers: dict[str, int]) -> None:
        for producer, tokens in producers.items():
            if producer != agent and tokens:
                self.edges.append((self.round, (agent, producer), tokens))
        self.window.reused(agent, producers)

    @property
    def round(self) -> int:
        """Of the last event: the round of an arrival is known by its number."""
        return max(0, self.arrivals - 1) // self.settings.round_requests

    def recomputed(self, last: int) -> dict[str, Contribution]:
        """Scores of the window that ends with round ``last``."""
        activities: dict[str, Activity] = {}
        peaks: dict[str, int] = {}
        for number, agent, done in self.done:
            if last - self.settings.rounds < number <= last:
                activities.setdefault(agent, Activity()).add(done)
                if done.requests:
                    peaks[agent] = max(peaks.get(agent, 0), done.running)
        return contributions(activities, peaks, self.shared(last), self.settings.collaborative_weight)

    def shared(self, last: int) -> dict[tuple[str, str], Sharing]:
        sharing: dict[tuple[str, str], Sharing] = {}
        for number, edge, tokens in self.edges:
            if last - self.settings.rounds < number <= last:
                counted = sharing.setdefault(edge, Sharing())
                counted.tokens += tokens
                counted.events += 1
        return sharing

    @invariant()
    def scores_are_those_of_the_last_rounds(self) -> None:
        assert self.window.round == self.round
        assert self.window.scores.keys() == self.scores.keys()
        for agent, score in self.scores.items():
            # The order of additions, and so the last bit of a sum, may differ.
            assert self.window.scores[agent].score == pytest.approx(score.score)
            assert self.window.score(agent) == self.window.scores[agent].score

    @invariant()
    def edges_are_those_of_the_last_rounds(self) -> None:
        found = {
            (edge["agent"], edge["producer"]): Sharing(edge["tokens"], edge["events"])
            for edge in self.window.edges()
        }
        assert found == self.shared(self.round)
        weights = [found[edge["agent"], edge["producer"]].weight for edge in self.window.edges()]
        assert weights == sorted(weights, reverse=True)


TestWindowMachine = WindowMachine.TestCase
TestWindowMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_two_windows_fed_alike_agree_to_the_last_bit() -> None:
    windows = [window(round_requests=3, rounds=2) for _ in range(2)]
    events = deque("abcaabbcacbbacbacabcbacbbcabcabcaaacb")
    while events:
        agent, producer = events.popleft(), events[0] if events else "a"
        for of in windows:
            of.arrived(agent, ord(agent))
            of.reused(agent, {producer: 7, "d": 3})
            of.left(agent, 3, 4)
        assert windows[0].scores == windows[1].scores
    assert windows[0].history == windows[1].history
    assert windows[0].round == 12
