"""Hive's frontend: agents as plain coroutines, compiled into flow graphs that supervisors search.

from hive_frontend import TreeOfThoughts, agent, fail, gen, run, score

@agent(supervisor=TreeOfThoughts(branch_at="guess", branching=4, breadth=2))
async def riddle(question: str) -> str:
    thought = await gen(f"{question} One idea, in one line.", name="guess", temperature=0.9)
    verdict = await gen(f"Q: {question} A: {thought} Sure?", name="judge", choices=["sure", "unsure"])
    score(verdict == "sure")
    return thought

result = run(riddle, "What has keys but opens no lock?", model="http://localhost:30000", seed=1)
print(result.value, result.totals)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hive_frontend.agents import Agent, agent, spawn
    from hive_frontend.client.cached_message import CachedMessage, KvUse
    from hive_frontend.client.contract import CallTimeout, Client, Completion, Request, Sampling
    from hive_frontend.client.dialogue import Dialogue
    from hive_frontend.client.http.client import HttpClient
    from hive_frontend.client.messages import Message
    from hive_frontend.client.prices import Prices
    from hive_frontend.client.reply import Reply
    from hive_frontend.client.structured import InvalidAnswer
    from hive_frontend.client.text_messages import TextMessages
    from hive_frontend.compiler.flow_graph import FlowGraph
    from hive_frontend.errors import (
        BranchFailed,
        BudgetExceeded,
        ChildEnded,
        CompileError,
        ForkError,
        HiveError,
        JournalError,
        ModelError,
        NoModelError,
        SupervisorError,
        ToolTimeout,
    )
    from hive_frontend.operation import fail, score
    from hive_frontend.operations.budget import Budget
    from hive_frontend.operations.call import gather, gen
    from hive_frontend.operations.child import Child
    from hive_frontend.operations.choice import choose
    from hive_frontend.operations.choreography import decode, prefill
    from hive_frontend.operations.fork import Shared
    from hive_frontend.operations.tool import tool
    from hive_frontend.operations.workspace import Workspace
    from hive_frontend.runtime import arun, run
    from hive_frontend.search.events import Event, Piece, Progress
    from hive_frontend.search.run_result import Result, RunResult
    from hive_frontend.search.search_tree import SearchTree, TreeNode
    from hive_frontend.search.session import Session
    from hive_frontend.search.totals import Totals, Usage
    from hive_frontend.streaming import Stream, stream
    from hive_frontend.supervisors.abmcts import ABMCTS
    from hive_frontend.supervisors.base import Supervisor
    from hive_frontend.supervisors.beam import Beam
    from hive_frontend.supervisors.best_of_n import BestOfN
    from hive_frontend.supervisors.mcts import MCTS
    from hive_frontend.supervisors.once import Once
    from hive_frontend.supervisors.searcher import Searcher, SearchProgress, lineage
    from hive_frontend.supervisors.self_refine import SelfRefine
    from hive_frontend.supervisors.state import Ask, Decision, Drop, Fire, State, best_first
    from hive_frontend.supervisors.tree_of_thoughts import TreeOfThoughts
    from hive_frontend.supervisors.vote import Vote
    from hive_frontend.views.live import LiveView
    from hive_frontend.views.tree import render_tree, write_tree

__all__ = [
    "ABMCTS",
    "MCTS",
    "Agent",
    "Ask",
    "Beam",
    "BestOfN",
    "BranchFailed",
    "Budget",
    "BudgetExceeded",
    "CachedMessage",
    "CallTimeout",
    "Child",
    "ChildEnded",
    "Client",
    "CompileError",
    "Completion",
    "Decision",
    "Dialogue",
    "Drop",
    "Event",
    "Fire",
    "FlowGraph",
    "ForkError",
    "HiveError",
    "HttpClient",
    "InvalidAnswer",
    "JournalError",
    "KvUse",
    "LiveView",
    "Message",
    "ModelError",
    "NoModelError",
    "Once",
    "Piece",
    "Prices",
    "Progress",
    "Reply",
    "Request",
    "Result",
    "RunResult",
    "Sampling",
    "SearchProgress",
    "SearchTree",
    "Searcher",
    "SelfRefine",
    "Session",
    "Shared",
    "State",
    "Stream",
    "Supervisor",
    "SupervisorError",
    "TextMessages",
    "ToolTimeout",
    "Totals",
    "TreeNode",
    "TreeOfThoughts",
    "Usage",
    "Vote",
    "Workspace",
    "agent",
    "arun",
    "best_first",
    "choose",
    "decode",
    "fail",
    "gather",
    "gen",
    "lineage",
    "prefill",
    "render_tree",
    "run",
    "score",
    "spawn",
    "stream",
    "tool",
    "write_tree",
]

_NAMES_OF = {
    "agents": "Agent agent spawn",
    "client.cached_message": "CachedMessage KvUse",
    "client.contract": "CallTimeout Client Completion Request Sampling",
    "client.dialogue": "Dialogue",
    "client.http.client": "HttpClient",
    "client.messages": "Message",
    "client.prices": "Prices",
    "client.reply": "Reply",
    "client.structured": "InvalidAnswer",
    "client.text_messages": "TextMessages",
    "compiler.flow_graph": "FlowGraph",
    "errors": "BranchFailed BudgetExceeded ChildEnded CompileError ForkError HiveError "
    "JournalError ModelError NoModelError SupervisorError ToolTimeout",
    "operation": "fail score",
    "operations.budget": "Budget",
    "operations.call": "gather gen",
    "operations.child": "Child",
    "operations.choice": "choose",
    "operations.choreography": "decode prefill",
    "operations.fork": "Shared",
    "operations.tool": "tool",
    "operations.workspace": "Workspace",
    "runtime": "arun run",
    "search.events": "Event Piece Progress",
    "search.run_result": "Result RunResult",
    "search.search_tree": "SearchTree TreeNode",
    "search.session": "Session",
    "search.totals": "Totals Usage",
    "streaming": "Stream stream",
    "supervisors.abmcts": "ABMCTS",
    "supervisors.base": "Supervisor",
    "supervisors.beam": "Beam",
    "supervisors.best_of_n": "BestOfN",
    "supervisors.mcts": "MCTS",
    "supervisors.once": "Once",
    "supervisors.searcher": "SearchProgress Searcher lineage",
    "supervisors.self_refine": "SelfRefine",
    "supervisors.state": "Ask Decision Drop Fire State best_first",
    "supervisors.tree_of_thoughts": "TreeOfThoughts",
    "supervisors.vote": "Vote",
    "views.live": "LiveView",
    "views.tree": "render_tree write_tree",
}
_HOMES = {name: module for module, names in _NAMES_OF.items() for name in names.split()}

if not TYPE_CHECKING:  # With `__getattr__`, a type checker would accept every misspelt name.

    def __getattr__(name: str) -> Any:
        """Import a public name on first use, so that importing one module does not import all others."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
