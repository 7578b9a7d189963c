"""What a run leaves behind: the JSON file and the tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from statistics import median

from pydantic import BaseModel
from rich.table import Table

from bench.game24.methods import Shape
from bench.harness.command import HowMade
from bench.harness.statistics import of_known
from bench.harness.tables import number, table
from bench.peers.analysis import Ratio, figure, prefilled, solved, step_ms, wall_s
from bench.peers.arms import ArmName, WorkloadName
from bench.peers.counters import Counters
from bench.peers.turns import Turn


class Block(BaseModel):
    """One arm's turn in one block."""

    block: int
    tasks: int
    solved: int
    wall_s: float
    requests: int
    tokens_computed: int
    tokens_replayed: int
    prompt_tokens_computed: int | None
    step_p50_ms: float | None


class Row(BaseModel):
    """One arm in one workload, all blocks together."""

    workload: WorkloadName
    arm: ArmName
    tasks: int
    """Puzzles, or bugs that were begun with."""
    solved: int
    wall_s: float
    """Of the arm's turns."""
    tasks_per_minute: float
    solved_per_minute: float
    tasks_per_minute_median: float
    """Median over the blocks."""
    solved_per_minute_median: float
    requests: int
    """Steps of the program: with n=k, one holds several answers."""
    step_p50_ms: float | None
    step_p99_ms: float | None
    """From the making of a request to its answer, as the program sees it."""
    client_cpu_ms_per_request: float | None
    """Processor time of the process that runs the arm's program and asks the server, shared out among the requests; the
    search itself is in it."""
    running_mean: float | None
    """Requests in a decode step of the server, on average. None, as the next two, if the server counts nothing."""
    extends: int | None
    """Passes of the model over new tokens of prompts."""
    decode_steps: int | None
    """Passes that drew a token for each running request."""
    tokens_computed: int
    """Output tokens that the model computed: all of them, less those replayed."""
    tokens_replayed: int
    tokens_computed_per_solved: float | None
    """None if nothing was solved."""
    prompt_tokens_computed: int | None
    """Tokens that the model read before it could draw one: of prompts, less what the radix cache had, and of replayed
    output that it went on from. None, as the next two, if the server counts nothing."""
    prompt_tokens_cached: int | None
    tokens_verified: int | None
    """Draft tokens that speculative decoding had the model look at, good and bad; this is work of the model, too."""
    host_bytes: int | None
    """Resident memory of all of the server's processes, the most at the end of any turn, what they share counted in
    each; None for a server elsewhere."""
    device_bytes: int | None
    """The same of GPU memory; None on a CPU, and where the driver does not tell whose it is."""
    model_bytes: int | None
    """Weights, KV pool and CUDA graphs by the server's own account; on a CPU they are a part of `host_bytes`."""
    blocks: list[Block]


class Setting(BaseModel):
    """What arms of a workload had in common."""

    shape: Shape
    """Of the searches: the same budget for all."""
    puzzles_at_once: int
    sessions: int
    """Of repairs, at once."""
    patches: int
    """Of each session in a block."""
    lookups: int
    """Looks at things before each patch, at the most."""
    pool: int | None
    """Tokens that the KV pool of the repairs' servers holds; None if they were not started here."""


class Report(HowMade):
    """The JSON file."""

    model: str
    seed: int
    setting: Setting
    left_out: dict[str, str]
    """Arms and blocks that were not run, and why."""
    rows: list[Row]
    ratios: list[Ratio]


def row_of(workload: WorkloadName, arm: ArmName, turns: Sequence[Turn]) -> Row:
    """The row of an arm's turns, at least one, on one server."""
    draft_tokens, model_bytes = turns[0].server
    computed = [turn.computed for turn in turns if turn.computed is not None]
    # What only some turns counted would pass for that of all.
    total: Counters | None = reduce(add, computed) if len(computed) == len(turns) else None
    requests = sum(len(turn.steps.latencies_s) for turn in turns)
    return Row(
        workload=workload,
        arm=arm,
        tasks=sum(turn.score.tasks for turn in turns),
        solved=solved(turns),
        wall_s=wall_s(turns),
        tasks_per_minute=figure(turns, "tasks_per_minute") or 0.0,
        solved_per_minute=figure(turns, "solved_per_minute") or 0.0,
        tasks_per_minute_median=median(60 * turn.score.tasks / turn.wall_s for turn in turns),
        solved_per_minute_median=median(60 * turn.score.solved / turn.wall_s for turn in turns),
        requests=requests,
        step_p50_ms=step_ms(turns, 50),
        step_p99_ms=step_ms(turns, 99),
        client_cpu_ms_per_request=1e3 * sum(turn.client_cpu_s for turn in turns) / requests
        if requests
        else None,
        running_mean=total.running_mean if total else None,
        extends=total.extends if total else None,
        decode_steps=total.decode_steps if total else None,
        tokens_computed=sum(turn.steps.generated for turn in turns),
        tokens_replayed=sum(turn.steps.replayed for turn in turns),
        tokens_computed_per_solved=figure(turns, "tokens_computed_per_solved"),
        prompt_tokens_computed=prefilled(turns),
        prompt_tokens_cached=total.cached if total else None,
        tokens_verified=total.verifications * draft_tokens if total and draft_tokens else None,
        host_bytes=of_known(max, (turn.host_bytes for turn in turns)),
        device_bytes=of_known(max, (turn.device_bytes for turn in turns)),
        model_bytes=model_bytes,
        blocks=[
            Block(
                block=turn.block,
                tasks=turn.score.tasks,
                solved=turn.score.solved,
                wall_s=turn.wall_s,
                requests=len(turn.steps.latencies_s),
                tokens_computed=turn.steps.generated,
                tokens_replayed=turn.steps.replayed,
                prompt_tokens_computed=prefilled([turn]),
                step_p50_ms=step_ms([turn], 50),
            )
            for turn in turns
        ],
    )


def rows_table(report: Report) -> Table:
    """All arms, workload by workload."""
    cells = (
        (
            *(row.workload, row.arm, f"{row.solved}/{row.tasks}", f"{row.solved_per_minute:.2f}"),
            *(
                f"{row.tasks_per_minute:.2f}",
                f"{row.tokens_computed:,}",
                number(row.tokens_computed_per_solved),
            ),
            *(f"{row.tokens_replayed:,}", number(row.prompt_tokens_computed)),
            *(number(row.step_p50_ms), number(row.step_p99_ms), number(row.client_cpu_ms_per_request, ".1f")),
            *(number(row.running_mean, ".1f"), number(row.extends), number(row.decode_steps)),
            *(_size(size) for size in (row.host_bytes, row.device_bytes, row.model_bytes)),
        )
        for row in report.rows
    )
    headings = (
        *("workload", "arm", "solved", "per min", "tasks/min", "tokens", "per solved", "replayed", "prompt"),
        *("p50 ms", "p99 ms", "cpu ms", "running", "extends", "steps", "host", "device", "model"),
    )
    caption = (
        "tokens: output that the model computed; prompt: tokens that it read, less those the KV pool had; cpu: of the "
        "client, for each request; running: requests in a decode step"
    )
    title = f"Hive and its peers: {report.model}, seed {report.seed}"
    return table(title, headings, cells, left=2, bold="hive", caption=caption)


def ratios_table(report: Report) -> Table:
    """Hive over stock SGLang, and over the best peer."""
    headings = ("workload", "figure", "ours", "other", "ratio", "95%", "better")
    cells = (
        (
            *(each.workload, each.figure, each.ours),
            f"{each.other} (best peer)" if each.best_peer else each.other,
            number(each.value, ".2f"),
            "-" if each.low is None or each.high is None else f"{each.low:.2f}-{each.high:.2f}",
            each.better,
        )
        for each in report.ratios
    )
    left = ("workload", "figure", "ours", "other", "better")
    return table("Hive over others", headings, cells, left=left)


def _size(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**30:.2f} GiB"
