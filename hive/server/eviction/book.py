"""Whose KV is resident, who uses it, and what became of it."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from hive.server.agents.registry import OTHER
from hive.server.eviction.base import EvictionPolicy
from hive.server.eviction.node import NodeRecord, Session

MAX_SESSIONS = 65536
NOT_RESIDENT = {"resident_tokens": 0, "stored_tokens": 0, "evicted_tokens": 0}
"""The summary of an agent that has stored nothing."""


@dataclass(slots=True)
class Tokens:
    """What became of one agent's KV, in tokens since start."""

    stored: int = 0
    evicted: int = 0


@dataclass(slots=True, eq=False)
class Use:
    """One admitted request: who stores and uses KV in its name."""

    agent: str
    session: Session | None


@dataclass(slots=True)
class ResidencyBook:
    """Keeps the records of the tree's nodes, and tells the policy what happens to them.

    The tree calls :meth:`admit` when a request has been given its KV, :meth:`stored` for every new node,
    :meth:`joined` for every other one that a request's KV turns out to be the same as, and :meth:`evicted` and
    :meth:`returned` when a node's KV leaves the device and is there again.
    """

    policy: EvictionPolicy | None
    """None where the engine's own policy decides."""
    clock: int = 0
    """Admissions so far."""
    resident: Counter[str] = field(default_factory=Counter)
    """Tokens on the device by the agent that computed them."""
    held: Counter[str] = field(default_factory=Counter)
    """Tokens on the device by the agent that used them last: what an agent holds of its share."""
    totals: dict[str, Tokens] = field(default_factory=dict)
    """Of every agent that stored or used KV and is not forgotten."""
    _sessions: OrderedDict[str, Session] = field(default_factory=OrderedDict)
    _sessions_begun: int = 0

    def use(self, agent: str, session: str | None) -> Use:
        """The identity under which a request takes part; it outlives the end of its session."""
        return Use(agent, self._session(session) if session is not None else None)

    def admit(self, use: Use, path: Sequence[tuple[NodeRecord, int]]) -> dict[str, int]:
        """A request found the nodes of ``path``, deepest first, each with its tokens; returns tokens by producer."""
        self.clock += 1
        self._total(use.agent)
        producers: dict[str, int] = {}
        for node, tokens in path:
            producers[node.producer] = producers.get(node.producer, 0) + tokens
            if self.policy is not None:
                self.policy.reused(node, tokens, self.clock)
            node.hits += 1
            node.used = self.clock
            if node.on_device:
                _take(self.held, node.agent, tokens)
                self.held[use.agent] += tokens
            node.agent = use.agent
            self.joined(node, use)
        if path:
            path[0][0].ends += 1
        return producers

    def stored(self, use: Use, tokens: int) -> NodeRecord:
        """The record of a node that ``use`` has put into the tree."""
        self.resident[use.agent] += tokens
        self.held[use.agent] += tokens
        self._total(use.agent).stored += tokens
        return NodeRecord(use.agent, use.agent, self.clock, use.session)

    def joined(self, node: NodeRecord, use: Use) -> None:
        """A request goes on from a node's KV; that of another session, and the node is no longer one session's."""
        if node.session is not use.session:
            # Nodes without a session stay without one: nothing is known of who shares them.
            node.shared = node.shared or (node.session is not None and use.session is not None)
            node.session = None

    def returned(self, node: NodeRecord, tokens: int, use: Use | None = None) -> None:
        """A node's KV is on the device again: computed anew by ``use``, or loaded back from the host.

        Who computes it anew uses it, but has not hit it; whoever it is loaded back for is yet to be admitted.
        """
        node.on_device = True
        # Whoever computes or uses KV is in the totals. Who is not was forgotten while this lay on the host; counted
        # by name it would be an agent that the registry does not know.
        if node.producer not in self.totals:
            node.producer = OTHER
        if node.agent not in self.totals:
            node.agent = OTHER
        if use is not None:
            self._total(use.agent)
            node.agent = use.agent
            node.used = self.clock
            self.joined(node, use)
        self.resident[node.producer] += tokens
        self.held[node.agent] += tokens
        self._total(node.producer).stored += tokens

    def evicted(self, node: NodeRecord, tokens: int) -> None:
        """A node's KV left the device."""
        node.on_device = False
        _take(self.resident, node.producer, tokens)
        _take(self.held, node.agent, tokens)
        self._total(node.producer).evicted += tokens
        if self.policy is not None:
            self.policy.evicted(node, tokens, self.clock)

    def end_session(self, name: str) -> Session | None:
        """What a session alone used is dead from now on; the caller tells the index of leaves."""
        session = self._sessions.pop(name, None)
        if session is not None:
            session.ended = True
        return session

    def holds(self, agent: str) -> bool:
        """Whether KV on the device was computed by an agent, or used last by it."""
        return agent in self.resident or agent in self.held

    def forget(self, agent: str) -> None:
        """An agent is over: it has no KV on the device, and what became of that it had counts under OTHER."""
        gone = self.totals.pop(agent, None)
        if gone is not None:
            others = self._total(OTHER)
            others.stored += gone.stored
            others.evicted += gone.evicted
        if self.policy is not None:
            self.policy.forget(agent)

    def flushed(self) -> None:
        """The tree is empty; what was learned stays."""
        self.resident.clear()
        self.held.clear()

    def shares(self) -> dict[str, float]:
        """Of what is resident, the part that each agent used last.

        Not what it computed: an agent that reads what others wrote crowds the pool as well.
        """
        total = self.held.total() or 1
        return {agent: tokens / total for agent, tokens in self.held.items()}

    def summary(self) -> dict[str, dict[str, int]]:
        """By agent, of what it computed: tokens resident, and stored and evicted since start."""
        return {agent: self.summary_of(agent) for agent in self.totals}

    def summary_of(self, agent: str) -> dict[str, int]:
        """The same of one agent; zeros for one that has stored nothing."""
        total = self.totals.get(agent)
        if total is None:
            return dict(NOT_RESIDENT)
        return {
            "resident_tokens": self.resident.get(agent, 0),
            "stored_tokens": total.stored,
            "evicted_tokens": total.evicted,
        }

    def _total(self, agent: str) -> Tokens:
        return self.totals.setdefault(agent, Tokens())

    def _session(self, name: str) -> Session:
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = Session(self._sessions_begun)
            self._sessions_begun += 1
        self._sessions.move_to_end(name)
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return session


def _take(counter: Counter[str], agent: str, tokens: int) -> None:
    """Less of an agent's tokens; an agent without any is not kept."""
    counter[agent] -= tokens
    if counter[agent] <= 0:
        del counter[agent]
