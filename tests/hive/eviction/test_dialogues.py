"""Dialogues, when they return, and what their KV is worth meanwhile."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hive.server.agents.registry import OTHER
from hive.server.eviction.accounting import MAX_DIALOGUES, ResidencyAccounting
from hive.server.eviction.hints import Event, Hint
from hive.server.eviction.node import DISCARDED, NodeRecord
from hive.server.eviction.policies.density import DEAD, DensityPolicy


class Server:
    """An accounting under the policy, whose requests each add one node to their dialogue's path."""

    def __init__(self) -> None:
        self.policy = DensityPolicy(lambda _: 0.5)
        self.accounting = ResidencyAccounting(self.policy)
        self.paths: dict[str, list[NodeRecord]] = {}
        self.now = 1.0

    def run(self, name: str, after: float, event: Event | None = None, *, agent: str = "a") -> NodeRecord:
        """A request of a session arrives some seconds later, and ends at once."""
        self.now += after
        use = self.accounting.use(agent, name if agent != OTHER else None)
        path = self.paths.setdefault(name, [])
        self.accounting.admit(use, [(node, 10) for node in reversed(path)], self.now)
        node = self.accounting.stored(use, 10)
        path.append(node)
        self.accounting.departed(use, self.now, event)
        return node

    def worth(self, *nodes: NodeRecord, after: float = 0.0) -> list[float]:
        classes = np.array([self.policy.class_of(node) for node in nodes], np.int32)
        used = np.array([node.used for node in nodes], np.int64)
        accounting = self.accounting
        accounting.now = self.now + after
        accounting.update_retained(capacity=1000)
        weigh = self.policy.weighing(accounting.clock, accounting.now)
        worth: list[float] = weigh(classes, used).tolist()
        return worth


@pytest.fixture
def server() -> Server:
    return Server()


def test_kv_of_sessions_that_wait_for_a_tool_outlives_that_of_sessions_that_wait_for_a_person(
    server: Server,
) -> None:
    for turn in range(40):
        server.run("tool", 4.0, "tool")
        if turn % 10 == 0:
            server.run("person", 3.0, "human")
    tool, person = server.run("t", 1.0, "tool"), server.run("p", 1.0, "human")
    kept, evicted = server.worth(tool, person)
    assert kept > evicted


def test_a_session_that_returns_soon_outlives_one_that_its_client_expects_later(server: Server) -> None:
    soon, later = server.run("soon", 1.0, "tool"), server.run("later", 1.0, "tool")
    server.accounting.hinted("soon", Hint("tool", 5.0), server.now)
    server.accounting.hinted("later", Hint("tool", 500.0), server.now)
    first, second = server.worth(soon, later)
    assert first > second
    first, second = server.worth(soon, later, after=450.0)
    assert first < second, "the first is overdue, and the other is expected"


def test_clients_that_are_always_wrong_are_not_believed(server: Server) -> None:
    for turn in range(400):
        server.run("liar", 500.0 if turn % 2 else 2.0, "tool")
        server.accounting.hinted("liar", Hint("tool", 2.0 if turn % 2 == 0 else 500.0), server.now)
    soon, later = server.run("soon", 1.0, "tool"), server.run("later", 1.0, "tool")
    server.accounting.hinted("soon", Hint("tool", 5.0), server.now)
    server.accounting.hinted("later", Hint("tool", 500.0), server.now)
    first, second = server.worth(soon, later)
    honest = Server()
    pair = honest.run("soon", 1.0, "tool"), honest.run("later", 1.0, "tool")
    honest.accounting.hinted("soon", Hint("tool", 5.0), honest.now)
    honest.accounting.hinted("later", Hint("tool", 500.0), honest.now)
    believed = honest.worth(*pair)
    assert first / second < believed[0] / believed[1]


def test_a_branch_that_its_session_has_left_goes_first(server: Server) -> None:
    server.run("s", 1.0)
    left = server.run("s", 1.0)
    server.paths["s"].pop()
    server.run("s", 1.0)
    newest = server.run("s", 1.0)
    gone, kept = server.worth(left, newest)
    assert 0.0 < gone < kept / 2


@pytest.mark.parametrize("hint", [Hint(discard=True), Hint("end")])
def test_discarded_kv_goes_before_all_but_the_dead_until_it_is_used_again(server: Server, hint: Hint) -> None:
    node = server.run("s", 1.0)
    server.accounting.hinted("s", hint, server.now)
    (worth,) = server.worth(node)
    assert DEAD < worth < 0.0
    assert server.worth(server.run("s", 1.0))[0] > 0.0


def test_priority_and_retention(server: Server) -> None:
    high, low, kept = (server.run(name, 0.0) for name in ("high", "low", "kept"))
    server.accounting.hinted("high", Hint(priority=10), server.now)
    server.accounting.hinted("kept", Hint(retain=60.0), server.now)
    worth = server.worth(high, low, kept)
    assert worth[1] < worth[0] < worth[2]
    worth = server.worth(high, low, kept, after=61.0)
    assert worth[2] < worth[0]


def test_each_field_of_a_hint_replaces_only_itself(server: Server) -> None:
    high, plain = server.run("high", 0.0), server.run("plain", 0.0)
    server.accounting.hinted("high", Hint(priority=50), server.now)
    for name in ("high", "plain"):
        server.accounting.hinted(name, Hint("tool", 2.0), server.now)
    first, second = server.worth(high, plain)
    assert first > 10 * second
    server.accounting.hinted("high", Hint("human"), server.now)
    assert high.dialogue is not None
    assert high.dialogue.expected is None
    server.accounting.hinted("high", Hint(discard=True), server.now)
    assert server.worth(high)[0] < 0.0
    server.accounting.hinted("high", Hint(priority=0), server.now)
    assert server.worth(high)[0] < 0.0
    server.accounting.hinted("high", Hint(discard=False), server.now)
    assert server.worth(high)[0] > 0.0


def test_a_hint_reaches_no_later_dialogue_in_the_same_place(server: Server) -> None:
    server.run("early", 0.0)
    server.accounting._dialogues_begun += 65535
    late = server.run("late", 1.0)
    before = server.worth(late)
    for hint in (Hint(discard=True), Hint(priority=-100), Hint(retain=60.0), Hint("end")):
        server.accounting.hinted("early", hint, server.now)
    assert server.worth(late) == before


def test_concurrent_samples_count_their_prompt_once(server: Server) -> None:
    accounting = server.accounting
    first = accounting.use("a", "s")
    accounting.admit(first, [], 1.0)
    prompt = accounting.stored(first, 2000)
    others = [accounting.use("a", "s") for _ in range(15)]
    for use in others:
        accounting.admit(use, [(prompt, 2000)], 1.0)
    assert first.dialogue is not None
    assert first.dialogue.path == [0, 0, 0, 2000]
    for use in (first, *others):
        accounting.departed(use, 2.0, None)
    accounting.admit(accounting.use("b", "s"), [(prompt, 2000)], 3.0)
    assert first.dialogue.path == [0, 0, 0, 0], "two dialogues use it"


def test_kv_that_comes_back_from_the_host_is_on_the_path_again(server: Server) -> None:
    node = server.run("s", 1.0)
    assert node.dialogue is not None
    server.accounting.evicted(node, 10)
    assert node.dialogue.path == [0, 0, 0, 0]
    server.accounting.returned(node, 10)
    assert node.dialogue.path == [10, 0, 0, 0]
    server.accounting.evicted(node, 10)
    use = server.accounting.use("a", "s")
    server.accounting.admit(use, [], 5.0)
    server.accounting.returned(node, 10, use)
    assert node.dialogue.path == [10, 0, 0, 0], "computed again"
    server.accounting.flushed()
    assert node.dialogue.path == [0, 0, 0, 0]


def test_a_session_has_a_bounded_number_of_dialogues(server: Server) -> None:
    for number in range(100):
        server.run("s", 1.0, agent=f"agent-{number}")
    session = server.accounting.use("agent-0", "s").session
    assert session is not None
    assert len(session.dialogues) == MAX_DIALOGUES
    assert "agent-99" in session.dialogues


def test_hints_give_no_numbers_to_forgotten_agents(server: Server) -> None:
    server.run("s", 1.0, agent="gone")
    server.policy.forget("gone")
    before = len(server.policy._agents)
    server.accounting.hinted("s", Hint("tool", 5.0), server.now)
    assert server.policy._agents.find("gone") is None
    assert len(server.policy._agents) == before


def test_discarded_kv_that_its_session_uses_again_ends_with_it(server: Server) -> None:
    node = server.run("s", 1.0)
    node.session = DISCARDED
    use = server.accounting.use("a", "s")
    server.accounting.admit(use, [(node, 10)], 2.0)
    assert not node.dead
    assert not node.shared
    server.accounting.end_session("s")
    assert node.dead


def test_hints_about_unknown_sessions_are_ignored(server: Server) -> None:
    server.accounting.hinted("stranger", Hint("tool", 1.0), 5.0)
    assert server.accounting.use("a", "stranger").session is not None


def test_an_anonymous_request_continues_the_idle_dialogue_that_it_matches(server: Server) -> None:
    first = server.run("chat", 1.0, agent=OTHER)
    second = server.run("chat", 1.0, agent=OTHER)
    assert first.dialogue is second.dialogue
    uses = [server.accounting.use(OTHER, None) for _ in range(2)]
    for use in uses:
        server.accounting.admit(use, [(first, 10)], server.now)
    assert uses[0].dialogue is second.dialogue
    assert uses[1].dialogue is not second.dialogue, "the dialogue is not idle any more"
    assert first.dialogue is None, "two dialogues use it"


def test_waiting_is_worth_what_is_usual_where_all_dialogues_are_of_one_class(server: Server) -> None:
    for turn in range(60):
        server.run(f"chat-{turn % 7}", 3.0 + 11.0 * (turn % 5), "human", agent=OTHER)
    returns = server.policy._waiting._returns
    dialogue = server.paths["chat-0"][0].dialogue
    assert dialogue is not None
    idle = np.geomspace(0.5, 1e4, 40)
    own, usual = (
        returns.values(np.full(40, row, np.int32), idle, server.now, server.accounting.clock)
        for row in (returns.row(dialogue, 0), returns.usual(0))
    )
    np.testing.assert_allclose(own, usual)


def test_a_dialogue_that_should_have_returned_long_ago_is_worth_little(server: Server) -> None:
    for turn in range(300):
        server.run(f"s-{turn % 3}", 1.0, "tool")
    node = server.paths["s-0"][-1]
    worth = [server.worth(node, after=after)[0] for after in (1.0, 100.0, 1e4, 1e5)]
    assert worth[0] > worth[1] > worth[2] >= worth[3] > 0.0


def test_requests_without_times_have_no_dialogue(server: Server) -> None:
    use = server.accounting.use("a", "s")
    server.accounting.admit(use, [])
    assert server.accounting.stored(use, 5).dialogue is None
    server.accounting.departed(use, 5.0, "tool")
    assert server.accounting.now == 0.0


def test_time_never_goes_back(server: Server) -> None:
    server.accounting.admit(server.accounting.use("a", "s"), [], 10.0)
    server.accounting.admit(server.accounting.use("a", "t"), [], 3.0)
    assert server.accounting.now == 10.0


REQUESTS = st.tuples(
    st.sampled_from("abc"),
    st.sampled_from(["tool", "human", "subagent", None]),
    st.floats(0.0, 1e5),
    st.one_of(st.none(), st.floats(0.0, 1e6)),
    st.booleans(),
)


@given(st.lists(REQUESTS, max_size=60))
@settings(max_examples=60, deadline=None)
def test_worth_is_finite_and_the_same_on_all_ranks(
    requests: list[tuple[str, Event | None, float, float | None, bool]],
) -> None:
    ranks = Server(), Server()
    for rank in ranks:
        for name, event, after, seconds, evicts in requests:
            node = rank.run(name, after, event, agent=OTHER if name == "c" else "a")
            if seconds is not None:
                rank.accounting.hinted(name, Hint(event, seconds), rank.now)
            if evicts:
                rank.accounting.evicted(node, 10)
                rank.paths[name].pop()
    one, other = (rank.worth(*[node for path in rank.paths.values() for node in path]) for rank in ranks)
    assert one == other
    assert all(0.0 <= worth < 1e9 for worth in one)
    curves = [rank.policy._waiting._returns._values for rank in ranks]
    assert all((np.isnan(values) | (values >= 0.0) & (values < 1e3)).all() for values in curves)
