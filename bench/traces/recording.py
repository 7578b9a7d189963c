"""Recordings of what agents ask a server, token by token, for benchmarks that replay it.

A file is JSON, compressed by xz: `{"requests": [{"agent", "session", "prompt", "output"}], "events": [...]}`, where
an event is `["start", index]`, `["finish", index]` or `["end", session]`. Prompts repeat each other for the most part:
one is written as `{"of": index, "take": count, "then": [ids]}`, the first tokens of an earlier request (its prompt
and then its output) and what is new.

To record, start a server, here with the embedded model, and run long sessions against it:

    python -m hive.launch_server --port 31777
    python -m bench.rtl_repair --url http://127.0.0.1:31777 --keep-going --sessions 4 --rounds 21 \\
        --json repair-4x21-report.json --trace bench/traces/recorded

Since `--trace` is a folder, that writes `repair-4x21.json.xz` there: 4 sessions at once, each over bugs of a design of
its own and 21 patches long. `--sessions 2 --rounds 6` makes `repair-2x6.json.xz`.
"""

from __future__ import annotations

import json
import lzma
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from hive_frontend.client import OnText

from bench.harness.forwarding import ForwardingModel
from bench.traces.prefix_tree import common_prefix
from bench.traces.trace import Event, Request, Trace
from hive import Client, Completion, ModelError
from hive import Request as Call

FOLDER: Final = Path(__file__).parent / "recorded"
SUFFIX: Final = ".json.xz"
_WINDOW: Final = 64
"""So many requests back a prompt is compared to."""


class RecordingModel(ForwardingModel):
    """A model that hands everything on to another one, and keeps what was asked and answered, in order.

    A request starts when it is handed on and finishes when its answer is there; that is the order in which this
    process saw it, which the server may have seen a few milliseconds apart. Calls that were abandoned or failed are
    left out. The other model has to report token ids: an `HttpClient` of a Hive server does, for dialogues.
    """

    def __init__(self, model: Client) -> None:
        super().__init__(model)
        self._requests: dict[int, Request] = {}
        self._events: list[Event] = []
        self._sessions: dict[str, str] = {}
        self._begun = 0

    async def complete(self, request: Call, on_text: OnText | None = None) -> Completion:
        number = self._begun
        self._begun += 1
        self._events.append(("start", number))
        completion = await super().complete(request, on_text)
        if not completion.prompt_ids:
            raise ModelError(
                "only answers that come with the tokens of prompt and output can be recorded: those of a Hive server "
                f"to dialogues, unlike this one to agent {request.agent!r}"
            )
        self._requests[number] = Request(
            request.agent,
            self._name_of(request.session),
            array("q", completion.prompt_ids),
            array("q", completion.output_ids),
        )
        self._events.append(("finish", number))
        return completion

    async def end_session(self, session: str) -> None:
        self._events.append(("end", self._name_of(session)))
        await super().end_session(session)

    def trace(self) -> Trace:
        index = {number: place for place, number in enumerate(sorted(self._requests))}
        events: list[Event] = []
        for event in self._events:
            if event[0] == "end":
                events.append(event)
            elif (place := index.get(event[1])) is not None:
                events.append(("start", place) if event[0] == "start" else ("finish", place))
        return Trace([self._requests[number] for number in index], events)

    def _name_of(self, session: str) -> str:
        # Real names are random: the file only says which requests belong together.
        return self._sessions.setdefault(session, f"s{len(self._sessions)}")


def save_trace(trace: Trace, path: Path) -> None:
    requests = []
    for number, request in enumerate(trace.requests):
        of, take = _nearest(trace.requests, number)
        prompt: Any = request.prompt.tolist()
        if take:
            prompt = {"of": of, "take": take, "then": prompt[take:]}
        requests.append(
            {
                "agent": request.agent,
                "session": request.session,
                "prompt": prompt,
                "output": request.output.tolist(),
            }
        )
    text = json.dumps({"requests": requests, "events": trace.events}, separators=(",", ":"))
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def recordings() -> Sequence[Path]:
    """The files that come with the bench."""
    return sorted(FOLDER.glob(f"*{SUFFIX}"))


def load_trace(path: Path) -> Trace:
    """Read a trace from a file; `ValueError` if it is none."""
    try:
        content = json.loads(lzma.decompress(path.read_bytes()))
        requests: list[Request] = []
        for entry in content["requests"]:
            prompt = entry["prompt"]
            if isinstance(prompt, dict):
                before = requests[prompt["of"]]
                ids = (before.prompt + before.output)[: prompt["take"]] + array("q", prompt["then"])
            else:
                ids = array("q", prompt)
            requests.append(Request(entry["agent"], entry["session"], ids, array("q", entry["output"])))
        events: list[Event] = [(kind, what) for kind, what in content["events"]]
    except (lzma.LZMAError, ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{path.name} is no trace: {error!r}") from None
    return Trace(requests, events)


def _nearest(requests: Sequence[Request], number: int) -> tuple[int, int]:
    """The earlier request that shares most with the beginning of a prompt, and how many tokens that are."""
    prompt = requests[number].prompt
    best, most = 0, 0
    for earlier in range(max(0, number - _WINDOW), number):
        whole = requests[earlier].prompt + requests[earlier].output
        # A request that shares no more than the best one so far need not be compared in full.
        if whole[: most + 1] == prompt[: most + 1] and (shared := common_prefix(whole, prompt)) > most:
            best, most = earlier, shared
    return best, most
