"""``python -m bench.bad_requests``: what stock SGLang does with each bad request, as a table.

A server that dies or stalls is started afresh, which costs about a minute on two cores; the whole table takes
more than an hour there.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import httpx

from bench.bad_requests.requests import BAD_REQUESTS, PROMPT, BadRequest, Outcome
from hive.server.embedded_model import ensure_embedded_model
from hive.server.server_process import ServerProcess

STOCK_FLAGS = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--disable-cuda-graph"),
    *("--skip-server-warmup", "--max-total-tokens", "8192"),
)
STOCK_ENVIRONMENT = {"SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0"}
"""A dying server otherwise waits a minute for a core dump of a GPU, when it still sees its scheduler's process: the
same request would be ``connection closed`` on one day and ``no answer`` on another."""
PATIENCE_S = 60.0
"""A first penalty or grammar compiles code, which takes some seconds: that is no stall."""


def serves(url: str) -> bool:
    """Whether a plain request is answered in time."""
    body = {"text": PROMPT, "sampling_params": {"max_new_tokens": 1}}
    try:
        return httpx.post(f"{url}/generate", json=body, timeout=PATIENCE_S).status_code == 200
    except httpx.TransportError:
        return False


def send(url: str, request: BadRequest) -> Outcome:
    """Send the request and say what it alone got."""
    headers = {"content-type": "application/json", **request.headers}
    try:
        answer = httpx.post(url + request.path, content=request.body, headers=headers, timeout=PATIENCE_S)
    except httpx.TimeoutException:
        return "no answer"
    except httpx.TransportError:
        return "connection closed"
    outcome: dict[int, Outcome] = {200: "200", 500: "500"}
    return outcome.get(answer.status_code, "400")


def ended(server: ServerProcess) -> bool:
    """Whether the server is gone; it may take a while to notice that a child has died."""
    try:
        server.process.wait(30)
    except subprocess.TimeoutExpired:
        return False
    return True


def cause(log: str) -> str:
    """The last exception in a log, or else its last line."""
    lines = log.strip().splitlines()
    errors = [line for line in lines if re.match(r"(?:\w+\.)*\w*(?:Error|Exception)\b", line)]
    return (errors or lines or [""])[-1][:120]


def measure(
    requests: Sequence[BadRequest], flags: Sequence[str], kept: Path | None
) -> dict[str, dict[str, str]]:
    """Send the requests that the file ``kept`` does not hold yet, adding to it and printing what happened."""
    results: dict[str, dict[str, str]] = {}
    if kept and kept.exists():
        results = json.loads(kept.read_text())
    server: ServerProcess | None = None
    stock = ["--model-path", str(ensure_embedded_model()), *STOCK_FLAGS, *flags]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        try:
            for request in requests:
                if request.name in results:
                    continue
                if server is None:
                    server = ServerProcess(
                        stock, log, module="sglang.launch_server", environment=STOCK_ENVIRONMENT
                    )
                    server.wait()
                before = log.stat().st_size
                outcome = send(server.url, request)
                alive = serves(server.url)
                if not alive:
                    outcome = "dies" if ended(server) else "stalls"
                with log.open(errors="replace") as text:
                    text.seek(before)
                    why = cause(text.read()) if outcome in ("dies", "stalls", "500") else ""
                if not alive:
                    server.stop()
                    server = None
                results[request.name] = {"outcome": outcome, "why": why}
                print(f"{request.name:60} {outcome:10} {why}", flush=True)
                if kept:
                    kept.write_text(json.dumps(results, indent=1) + "\n")
        finally:
            if server is not None:
                server.stop()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.bad_requests", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="only requests whose name contains TEXT")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="keep the outcomes here; what it holds is not sent"
    )
    parser.add_argument("flags", nargs="*", help="more flags of the server, after --")
    options = parser.parse_args()
    chosen = [request for request in BAD_REQUESTS if options.only in request.name]
    results = measure(chosen, options.flags, options.json)
    counts = Counter(result["outcome"] for result in results.values()).most_common()
    print(", ".join(f"{outcome}: {count}" for outcome, count in counts))


if __name__ == "__main__":
    main()
