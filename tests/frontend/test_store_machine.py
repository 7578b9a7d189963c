"""A run in a store, crashed at any of its entries, answered by people and resumed in any order, comes to one end."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from hive_frontend import (
    Request,
    RunStore,
    TreeOfThoughts,
    agent,
    ask_human,
    gather,
    gen,
    run,
    score,
    spawn,
    tool,
)
from hive_frontend.runs import store as store_module
from hive_frontend.runs.log import Entry
from hive_frontend.runs.questions import Question
from hive_frontend.testing import FunctionModel
from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

service: dict[str, str] = {}
"""What tools have done, by idempotency key."""
performed: list[str] = []
"""The calls of models and tools in this execution."""


class Crash(BaseException):
    """The process ends here."""


def pay(what: str, idempotency_key: str) -> str:
    assert service.setdefault(idempotency_key, what) == what
    performed.append(f"pay {what}")
    return f"paid {what}"


@agent
async def clerk(what: str) -> str:
    allowed = await ask_human(f"Pay {what}?", choices=["yes", "no"])
    return await tool(pay, what, idempotency_key=True) if allowed == "yes" else "refused"


@agent(supervisor=TreeOfThoughts(branch_at="idea", branching=2, breadth=2, limit=None))
async def shop(question: str) -> list[Any]:
    out: list[Any] = []
    for turn in range(2):
        idea = await gen(f"{question}{turn}{out}", name="idea")
        receipt = await tool(pay, idea, idempotency_key=True)
        about, worth = await gather(gen(f"about {receipt}"), ask_human(f"Worth of {idea}?", schema=int))
        score(worth)
        out.append((about, worth, await spawn(clerk, f"{idea}+")))
    return out


def reply(request: Request) -> str:
    performed.append(f"{request.state} {request.sample}")
    return f"{len(request.text)}.{request.sample}"


def person(question: Question) -> Any:
    number = sum(question.text.encode())
    return question.choices[number % 2] if question.choices else number % 7


@cache
def expected() -> tuple[Any, int, int]:
    """The results of an undisturbed run, its calls of models and tools, and its payments."""
    service.clear()
    performed.clear()
    result = run(shop, "q", model=FunctionModel(reply), seed=1, on_question=person)
    return result.results, len(performed), len(service)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.results, self.operations, self.payments = expected()
        service.clear()
        self.folder = Path(tempfile.mkdtemp())
        self.store = RunStore(self.folder / "runs.db")
        # A reader that stays spares SQLite a sync of the disk whenever another connection closes.
        with self.store.log("other", "other"):
            self.reader = sqlite3.connect(self.store.path)
            self.reader.execute("SELECT COUNT(*) FROM runs").fetchone()
        self.begun = False
        self.done = False
        self.crashes = 0
        self.total = 0

    def teardown(self) -> None:
        while not self.done:
            self.resume(None, False)
            self.answer_all()
        self.every_payment_is_made_once()
        self.reader.close()
        shutil.rmtree(self.folder)

    @precondition(lambda self: not self.done)
    @rule(crash_at=strategies.integers(0, 12), stored=strategies.booleans())
    def crash(self, crash_at: int, stored: bool) -> None:
        """The process ends when it writes its n-th entry, just before or just after it is stored."""
        self.resume(crash_at, stored)

    @precondition(lambda self: not self.done)
    @rule()
    def go_on(self) -> None:
        self.resume(None, False)

    def resume(self, crash_at: int | None, stored: bool) -> None:
        known = self.known()
        performed.clear()
        left = crash_at
        write = store_module.StoreLog.write

        def counted(log: store_module.StoreLog, *entries: Entry) -> None:
            nonlocal left
            if left is None:
                return write(log, *entries)
            left -= 1
            if left >= 0:
                return write(log, *entries)
            if stored and left == -1:
                write(log, *entries)
            raise Crash

        store_module.StoreLog.write = counted  # type: ignore[method-assign]
        try:
            result = run(shop, "q", model=FunctionModel(reply), seed=1, store=self.store, run_id="r")
        except Crash:
            self.crashes += 1
        else:
            self.done = not result.questions
            if self.done:
                assert result.results == self.results
        finally:
            store_module.StoreLog.write = write  # type: ignore[method-assign]
            self.begun = True
        assert known.isdisjoint(performed), "what is stored is not done again"
        self.total += len(performed)

    def known(self) -> set[str]:
        """The model calls that are stored."""
        found = set()
        for answer in self.store.history("r") if self.begun else ():
            if answer.kind == "model":
                state, _, part = answer.at.partition("/")
                before, _, firing = state.rpartition(".")
                found.add(f"{before}{part and f'/{part}'} {firing}")
        return found

    @precondition(lambda self: self.begun and self.store.get("r").questions)
    @rule(data=strategies.data())
    def answer(self, data: strategies.DataObject) -> None:
        question = data.draw(strategies.sampled_from(self.store.get("r").questions))
        self.store.answer("r", question.at, str(person(question)))

    def answer_all(self) -> None:
        for question in self.store.get("r").questions:
            self.store.answer("r", question.at, str(person(question)))

    @invariant()
    def every_payment_is_made_once(self) -> None:
        assert len(service) <= self.payments
        if self.done:
            assert len(service) == self.payments
            assert self.total >= self.operations
            if not self.crashes:
                assert self.total == self.operations, "nothing was done twice"

    @invariant()
    def the_status_is_that_of_the_run(self) -> None:
        if self.begun:
            found = self.store.get("r")
            assert found.status == ("finished" if self.done else "waiting" if found.questions else "stopped")


TestStore = Machine.TestCase
TestStore.settings = settings(
    max_examples=int(os.environ.get("HIVE_ORACLE_EXAMPLES", "150")) // 10,
    stateful_step_count=15,
    deadline=None,
)
