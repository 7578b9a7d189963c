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

from hive_frontend.agents import Agent, agent
from hive_frontend.client import (
    CallTimeout,
    Client,
    Completion,
    HttpClient,
    Prices,
    Request,
    Sampling,
    TextMessages,
)
from hive_frontend.client.cached_message import CachedMessage, KvUse
from hive_frontend.client.dialogue import Dialogue, Message
from hive_frontend.client.reply import Reply
from hive_frontend.client.structured import InvalidAnswer
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
from hive_frontend.operations.budget import Budget
from hive_frontend.operations.call import gather, gen
from hive_frontend.operations.child import Child, spawn
from hive_frontend.operations.choice import choose
from hive_frontend.operations.choreography import decode, prefill
from hive_frontend.operations.fork import Shared
from hive_frontend.operations.tool import tool
from hive_frontend.operations.workspace import Workspace
from hive_frontend.runtime import arun, run
from hive_frontend.scope import fail, score
from hive_frontend.search.events import Event, Piece, Progress
from hive_frontend.search.run_result import Result, RunResult
from hive_frontend.search.search_tree import SearchTree, TreeNode
from hive_frontend.search.session import Session
from hive_frontend.search.totals import Totals, Usage
from hive_frontend.streaming import Stream, stream
from hive_frontend.supervisors import (
    MCTS,
    Ask,
    Beam,
    BestOfN,
    Books,
    Decision,
    Drop,
    Fire,
    Once,
    Searcher,
    SelfRefine,
    Supervisor,
    TreeOfThoughts,
    Vote,
    lineage,
)
from hive_frontend.supervisors.state import State, by_promise
from hive_frontend.views.live import LiveView
from hive_frontend.views.tree import render_tree, write_tree

__all__ = [
    "MCTS",
    "Agent",
    "Ask",
    "Beam",
    "BestOfN",
    "Books",
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
    "by_promise",
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
