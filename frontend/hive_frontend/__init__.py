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
    from hive_frontend.client.messages import Message, ToolCall
    from hive_frontend.client.prices import Prices
    from hive_frontend.client.reply import Reply
    from hive_frontend.client.structured import InvalidAnswer
    from hive_frontend.client.text_messages import TextMessages
    from hive_frontend.client.tools import ModelTool
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
        StepsExceeded,
        SupervisorError,
        ToolTimeout,
    )
    from hive_frontend.evaluation.estimates import Estimate
    from hive_frontend.evaluation.report import Case, Comparison, Evaluation
    from hive_frontend.evaluation.runner import Arm, acompare, aevaluate, compare, evaluate
    from hive_frontend.operation import fail, score
    from hive_frontend.operations.act import act
    from hive_frontend.operations.budget import Budget
    from hive_frontend.operations.call import gather, gen
    from hive_frontend.operations.child import Child
    from hive_frontend.operations.choice import ask_human, choose
    from hive_frontend.operations.choreography import decode, prefill
    from hive_frontend.operations.fork import Shared
    from hive_frontend.operations.mcp import mcp_tools
    from hive_frontend.operations.tool import tool
    from hive_frontend.operations.workspace import Workspace
    from hive_frontend.runs.history import Answer
    from hive_frontend.runs.questions import Question
    from hive_frontend.runs.store import RunStore, StoredRun
    from hive_frontend.runtime import arun, run
    from hive_frontend.search.events import Event, Piece, Progress
    from hive_frontend.search.run_result import Result, RunResult
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
    from hive_frontend.tree import SearchTree, TreeNode, render_tree, write_tree
    from hive_frontend.views.live import LiveView

__all__ = [
    "ABMCTS",
    "MCTS",
    "Agent",
    "Answer",
    "Arm",
    "Ask",
    "Beam",
    "BestOfN",
    "BranchFailed",
    "Budget",
    "BudgetExceeded",
    "CachedMessage",
    "CallTimeout",
    "Case",
    "Child",
    "ChildEnded",
    "Client",
    "Comparison",
    "CompileError",
    "Completion",
    "Decision",
    "Dialogue",
    "Drop",
    "Estimate",
    "Evaluation",
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
    "ModelTool",
    "NoModelError",
    "Once",
    "Piece",
    "Prices",
    "Progress",
    "Question",
    "Reply",
    "Request",
    "Result",
    "RunResult",
    "RunStore",
    "Sampling",
    "SearchProgress",
    "SearchTree",
    "Searcher",
    "SelfRefine",
    "Session",
    "Shared",
    "State",
    "StepsExceeded",
    "StoredRun",
    "Stream",
    "Supervisor",
    "SupervisorError",
    "TextMessages",
    "ToolCall",
    "ToolTimeout",
    "Totals",
    "TreeNode",
    "TreeOfThoughts",
    "Usage",
    "Vote",
    "Workspace",
    "acompare",
    "act",
    "aevaluate",
    "agent",
    "arun",
    "ask_human",
    "best_first",
    "choose",
    "compare",
    "decode",
    "evaluate",
    "fail",
    "gather",
    "gen",
    "lineage",
    "mcp_tools",
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
    "client.messages": "Message ToolCall",
    "client.prices": "Prices",
    "client.reply": "Reply",
    "client.structured": "InvalidAnswer",
    "client.text_messages": "TextMessages",
    "client.tools": "ModelTool",
    "compiler.flow_graph": "FlowGraph",
    "errors": "BranchFailed BudgetExceeded ChildEnded CompileError ForkError HiveError "
    "JournalError ModelError NoModelError StepsExceeded SupervisorError ToolTimeout",
    "evaluation.estimates": "Estimate",
    "evaluation.report": "Case Comparison Evaluation",
    "evaluation.runner": "Arm acompare aevaluate compare evaluate",
    "operation": "fail score",
    "operations.act": "act",
    "operations.budget": "Budget",
    "operations.call": "gather gen",
    "operations.child": "Child",
    "operations.choice": "ask_human choose",
    "operations.choreography": "decode prefill",
    "operations.fork": "Shared",
    "operations.mcp": "mcp_tools",
    "operations.tool": "tool",
    "operations.workspace": "Workspace",
    "runs.history": "Answer",
    "runs.questions": "Question",
    "runs.store": "RunStore StoredRun",
    "runtime": "arun run",
    "search.events": "Event Piece Progress",
    "search.run_result": "Result RunResult",
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
    "tree": "SearchTree TreeNode render_tree write_tree",
    "views.live": "LiveView",
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
