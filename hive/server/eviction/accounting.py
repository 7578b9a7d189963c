"""Accounting of the resident KV: who computed it, who uses it, and how much was evicted."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakSet

from hive.server.agents.registry import OTHER
from hive.server.eviction.base import EvictionPolicy
from hive.server.eviction.dialogues import HIT_BUCKETS, Dialogue, hit_bucket
from hive.server.eviction.hints import Event, Hint
from hive.server.eviction.node import DISCARDED, NodeRecord, Session
from hive.server.eviction.retention import Retention

MAX_SESSIONS = 65536
MAX_DIALOGUES = 32
"""Maximum number of dialogues of a session; a further one replaces the one whose last request is the oldest."""
_RETAINED_FOR = 64
"""Admissions between two looks at whose KV fits into the quota, unless somebody asks or a retention ends."""
NOT_RESIDENT = {"resident_tokens": 0, "stored_tokens": 0, "evicted_tokens": 0}
"""The summary of an agent that has stored no KV."""


@dataclass(slots=True)
class Tokens:
    """Tokens of KV that one agent stored, and how many of them were evicted, since start."""

    stored: int = 0
    evicted: int = 0


@dataclass(slots=True, eq=False)
class Use:
    """The identity of one admitted request: the agent and the session that store and use KV."""

    agent: str
    session: Session | None
    dialogue: Dialogue | None = None
    """None until the request is admitted, and if it came without a time."""


@dataclass(slots=True)
class ResidencyAccounting:
    """Keeps the records of the tree's nodes, and tells the policy about hits and evictions.

    The tree calls :meth:`admit` when a request has been admitted, :meth:`stored` for every new node, :meth:`joined`
    for every existing node that holds the same KV as the request, and :meth:`evicted` and :meth:`returned` when the KV
    of a node leaves the device and comes back.
    """

    policy: EvictionPolicy | None
    """None if the engine's own policy decides."""
    clock: int = 0
    """Admissions so far."""
    now: float = 0.0
    """The latest time that a request or a hint brought, in seconds.  No clock is read here: all tensor-parallel ranks
    see the same requests, and so decide alike."""
    resident: Counter[str] = field(default_factory=Counter)
    """Tokens on the device by the agent that computed them."""
    held: Counter[str] = field(default_factory=Counter)
    """Tokens on the device by the agent that used them last."""
    totals: dict[str, Tokens] = field(default_factory=dict)
    """By agent: every one that stored or used KV and was not forgotten."""
    retention: Retention = field(default_factory=Retention)
    dialogues: WeakSet[Dialogue] = field(default_factory=WeakSet)
    """Those that a session, a request or KV belongs to."""
    _some_retained: bool = False
    """Whether the policy knows of retained dialogues."""
    _retained_at: tuple[int, int] = (0, -1)
    """The clock and :attr:`Retention.changes` when it was told of them."""
    _sessions: OrderedDict[str, Session] = field(default_factory=OrderedDict)
    _sessions_begun: int = 0
    _dialogues_begun: int = 0

    def use(self, agent: str, session: str | None) -> Use:
        """Return the identity of a request; it stays valid after its session has ended."""
        return Use(agent, self._session(session) if session is not None else None)

    def admit(
        self, use: Use, path: Sequence[tuple[NodeRecord, int]], now: float | None = None
    ) -> dict[str, int]:
        """Count the hits of an admitted request.

        Args:
            use: the identity of the request.
            path: the nodes that it matched, deepest first, each with its tokens.
            now: when the request arrived, in seconds; None if that is unknown, and its dialogue is not followed.

        Returns:
            The matched tokens by the agent that computed them.
        """
        self.clock += 1
        self._total(use.agent)
        if now is not None:
            self._continue(use, path, now)
        producers: dict[str, int] = {}
        for node, tokens in path:
            producers[node.producer] = producers.get(node.producer, 0) + tokens
            if self.policy is not None:
                self.policy.reused(node, tokens, self.clock)
            _count_on_path(node, -tokens)
            node.hits += 1
            node.used = self.clock
            if node.on_device:
                _take(self.held, node.agent, tokens)
                self.held[use.agent] += tokens
            node.agent = use.agent
            _join(node, use)
            _count_on_path(node, tokens)
        if path:
            path[0][0].ends += 1
        return producers

    def stored(self, use: Use, tokens: int) -> NodeRecord:
        """Return the record of a new node that ``use`` has put into the tree."""
        self.resident[use.agent] += tokens
        self.held[use.agent] += tokens
        self._total(use.agent).stored += tokens
        record = NodeRecord(use.agent, use.agent, self.clock, use.session)
        if use.dialogue is not None:
            record.dialogue, record.turn = use.dialogue, use.dialogue.turn
            _count_on_path(record, tokens)
        return record

    def joined(self, node: NodeRecord, tokens: int, use: Use) -> None:
        """Note that a request holds a node's KV, too; a second session makes the node shared."""
        _count_on_path(node, -tokens)
        _join(node, use)
        _count_on_path(node, tokens)

    def departed(self, use: Use, now: float, event: Event | None) -> None:
        """Note that a request has ended.

        Args:
            use: the identity of the request.
            now: the time, in seconds, the same on all ranks.
            event: what its dialogue waits for, as far as the server sees.
        """
        dialogue = use.dialogue
        if dialogue is None:
            return
        dialogue.running -= 1
        if dialogue.running == 0:
            self.now = dialogue.since = max(now, self.now)
            # A client's hint may have come with the request.
            dialogue.event = dialogue.event or event
            dialogue.idle = True
            if use.session is not None:
                use.session.latest = dialogue
            if self.policy is not None:
                self.policy.departed(dialogue, self.clock)

    def hinted(self, session_name: str, hint: Hint, now: float) -> None:
        """Note what a client says about the next request of a session.

        What it says in ``event`` and ``seconds`` concerns the dialogue whose request ended last, the rest all of the
        session. It holds for each dialogue until its next request.
        """
        session = self._sessions.get(session_name)
        if session is None or self.policy is None:
            return
        self.now = max(now, self.now)
        if hint.discard or hint.event == "end":
            self.retention.release(session_name)
        elif hint.retain is not None:
            self.retention.retain(session_name, hint.retain, self.now)
        latest = session.latest
        if latest is not None and hint.event is not None:
            # The hint counts from now, the dialogue's idle time from its last request.
            idle = self.now - latest.since if latest.idle else 0.0
            latest.event = hint.event
            latest.expected = None if hint.seconds is None else hint.seconds + idle
        for dialogue in session.dialogues.values():
            self.policy.hinted(dialogue, hint, self.now)

    def observed(self, session_name: str, event: Event, now: float) -> None:
        """Note what a session waits for, as far as the server saw after its request had ended."""
        session = self._sessions.get(session_name)
        latest = None if session is None else session.latest
        if latest is None or not latest.idle:
            return
        self.now = max(now, self.now)
        latest.event = latest.event or event
        if self.policy is not None:
            self.policy.departed(latest, self.clock)

    def update_retained(self, capacity: int) -> None:
        """Tell the policy, before an eviction, whose KV is retained now; ``capacity`` is the pool's, in tokens."""
        if self.policy is None or not (len(self.retention) or self._some_retained):
            return
        looked, change = self._retained_at
        known = change == self.retention.changes and self.now < self.retention.next_end
        if known and self.clock - looked < _RETAINED_FOR:
            return
        names = self.retention.retained(self._tokens_of, capacity, self.now)
        dialogues = [
            dialogue
            for name in names
            if (session := self._sessions.get(name)) is not None
            for dialogue in session.dialogues.values()
        ]
        self._some_retained = bool(dialogues)
        self._retained_at = self.clock, self.retention.changes
        self.policy.retained(dialogues)

    def _tokens_of(self, session_name: str) -> int:
        """Return the tokens of KV that the next requests of a session's dialogues would continue."""
        session = self._sessions.get(session_name)
        if session is None:
            return 0
        return sum(sum(dialogue.path) for dialogue in session.dialogues.values())

    def _continue(self, use: Use, path: Sequence[tuple[NodeRecord, int]], now: float) -> None:
        """Find the dialogue that an admitted request continues, or begin one."""
        self.now = now = max(now, self.now)
        dialogue = use.dialogue = self._dialogue(use, path)
        if dialogue.running == 0:
            matched, old = [0] * HIT_BUCKETS, 0
            for node, tokens in path:
                if node.dialogue is dialogue and node.on_device:
                    if node.on_path:
                        matched[hit_bucket(node.hits)] += tokens
                    else:
                        old += tokens
            if self.policy is not None:
                self.policy.continued(dialogue, now, self.clock, matched, old)
            if dialogue.idle:
                dialogue.returned(now - dialogue.since)
            dialogue.turn += 1
            dialogue.path = [0] * HIT_BUCKETS
            dialogue.event = dialogue.expected = None
            dialogue.idle = False
            dialogue.since = now
        dialogue.running += 1
        if use.session is not None:
            use.session.latest = dialogue

    def _dialogue(self, use: Use, path: Sequence[tuple[NodeRecord, int]]) -> Dialogue:
        if use.session is not None:
            dialogues = use.session.dialogues
            dialogues[use.agent] = dialogue = dialogues.pop(use.agent, None) or self._begin(use)
            if len(dialogues) > MAX_DIALOGUES:
                oldest = dialogues.pop(next(iter(dialogues)))
                if self.policy is not None:
                    self.policy.lost(oldest, self.now, self.clock)
            return dialogue
        # An anonymous request continues the idle dialogue on whose path its match ends.
        tip = path[0][0] if path else None
        if tip is not None and tip.dialogue is not None and not tip.dialogue.named:
            dialogue = tip.dialogue
            if dialogue.agent == use.agent and dialogue.idle and tip.on_path:
                return dialogue
        return self._begin(use)

    def _begin(self, use: Use) -> Dialogue:
        self._dialogues_begun += 1
        dialogue = Dialogue(use.agent, use.session is not None, self._dialogues_begun)
        self.dialogues.add(dialogue)
        return dialogue

    def returned(self, node: NodeRecord, tokens: int, use: Use | None = None) -> None:
        """Count a node whose KV is on the device again: recomputed by ``use``, or loaded back from the host if None.

        Recomputing counts as a use, but not as a hit.  The request for which KV is loaded back is admitted later.
        """
        node.on_device = True
        # An agent that is missing in the totals was forgotten while its KV lay on the host.  Counted by name, it would
        # be an agent that the registry does not know.
        if node.producer not in self.totals:
            node.producer = OTHER
        if node.agent not in self.totals:
            node.agent = OTHER
        if use is not None:
            self._total(use.agent)
            node.agent = use.agent
            node.used = self.clock
            _join(node, use)
        _count_on_path(node, tokens)
        self.resident[node.producer] += tokens
        self.held[node.agent] += tokens
        self._total(node.producer).stored += tokens

    def evicted(self, node: NodeRecord, tokens: int) -> None:
        """Count a node whose KV left the device."""
        _count_on_path(node, -tokens)
        node.on_device = False
        _take(self.resident, node.producer, tokens)
        _take(self.held, node.agent, tokens)
        self._total(node.producer).evicted += tokens
        dialogue = node.dialogue
        if self.policy is not None and dialogue is not None and node.on_path and not dialogue.named:
            self.policy.lost(dialogue, self.now, self.clock)
        if self.policy is not None:
            self.policy.evicted(node, tokens, self.clock)

    def end_session(self, name: str) -> Session | None:
        """Mark a session as ended, and with it the KV that only it used; the caller then updates the leaf index."""
        session = self._sessions.pop(name, None)
        self.retention.release(name)
        if session is not None:
            session.ended = True
            if self.policy is not None:
                for dialogue in session.dialogues.values():
                    self.policy.ended(dialogue)
        return session

    def holds(self, agent: str) -> bool:
        """Whether KV on the device was computed or last used by an agent."""
        return agent in self.resident or agent in self.held

    def forget(self, agent: str) -> None:
        """Move the totals of an ended agent, which has no KV on the device, to OTHER."""
        gone = self.totals.pop(agent, None)
        if gone is not None:
            others = self._total(OTHER)
            others.stored += gone.stored
            others.evicted += gone.evicted
        if self.policy is not None:
            self.policy.forget(agent)

    def flushed(self) -> None:
        """Count an emptied tree; what the policy has learned stays."""
        for dialogue in self.dialogues:
            dialogue.path = [0] * HIT_BUCKETS
        self.resident.clear()
        self.held.clear()

    def summary(self) -> dict[str, dict[str, int]]:
        """Return, by agent that computed it: tokens resident now, and tokens stored and evicted since start."""
        return {agent: self.summary_of(agent) for agent in self.totals}

    def summary_of(self, agent: str) -> dict[str, int]:
        """Return the same for one agent; zeros if it has stored nothing."""
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


def _join(node: NodeRecord, use: Use) -> None:
    if node.session is DISCARDED:
        node.session = use.session
    elif node.session is not use.session:
        # A node without a session keeps none: which sessions share it is unknown.
        node.shared = node.shared or (node.session is not None and use.session is not None)
        node.session = None
    if node.dialogue is not use.dialogue:
        node.dialogue = None
    elif node.dialogue is not None:
        node.turn = node.dialogue.turn


def _count_on_path(node: NodeRecord, tokens: int) -> None:
    """Add tokens of a node to its dialogue's path, or subtract them, before the record changes and after."""
    if node.dialogue is not None and node.on_path and node.on_device:
        node.dialogue.path[hit_bucket(node.hits)] += tokens


def _take(counter: Counter[str], agent: str, tokens: int) -> None:
    """Subtract tokens of an agent; drop the agent at zero."""
    counter[agent] -= tokens
    if counter[agent] <= 0:
        del counter[agent]
