"""The command line `hive`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence

from hive_frontend.errors import HiveError
from hive_frontend.runs.questions import Question
from hive_frontend.runs.store import RunStore


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    arguments = _parser().parse_args(words)
    command: Callable[[argparse.Namespace], None] = arguments.command
    try:
        command(arguments)
    except (HiveError, ValueError) as error:
        print(f"hive: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hive", description="Work with the runs of agent programs.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    runs = commands.add_parser("runs", help="list, show, answer, fork and delete the runs of a store")
    runs.add_argument("--store", default="runs.db", metavar="FILE", help="the store (default: %(default)s)")
    verbs = runs.add_subparsers(required=True, metavar="VERB")

    listing = verbs.add_parser("list", help="list all runs")
    listing.add_argument("--status", help="only those that are running, waiting, stopped, failed or finished")
    listing.set_defaults(command=_list)

    show = verbs.add_parser("show", help="show a run with its open questions and all its answers")
    show.add_argument("run", metavar="RUN")
    show.set_defaults(command=_show)

    answer = verbs.add_parser("answer", help="answer a question; the run goes on when its program runs again")
    answer.add_argument("run", metavar="RUN")
    answer.add_argument("at", metavar="QUESTION", help="where it is asked, as `list` and `show` print it")
    answer.add_argument("text", metavar="TEXT", help="the answer; JSON for an answer with a schema")
    answer.set_defaults(command=_answer)

    fork = verbs.add_parser("fork", help="make a new run in which one answer was another")
    fork.add_argument("run", metavar="RUN")
    fork.add_argument("at", metavar="ANSWER", help="where it was given, as `show` prints it")
    fork.add_argument("text", metavar="TEXT", help="the other answer; JSON for the result of a tool")
    fork.add_argument("--run-id", metavar="RUN", help="the id of the new run (default: a random one)")
    fork.set_defaults(command=_fork)

    delete = verbs.add_parser("delete", help="delete runs")
    delete.add_argument("runs", metavar="RUN", nargs="+")
    delete.set_defaults(command=_delete)
    return parser


def _list(arguments: argparse.Namespace) -> None:
    found = RunStore(arguments.store).runs(arguments.status)
    rows = [("RUN", "AGENT", "STATUS", "UPDATED")]
    rows += [
        (run.id, run.agent, run.status, f"{run.updated.astimezone():%Y-%m-%d %H:%M:%S}") for run in found
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
        for question in found[number - 1].questions if number else ():
            print(f"  {_line(question)}")


def _show(arguments: argparse.Namespace) -> None:
    store = RunStore(arguments.store)
    run = store.get(arguments.run)
    agent = f"{run.agent}({', '.join(f'{name}={text}' for name, text in run.arguments.items())})"
    facts = {"agent": agent, "status": run.status, "outcome": run.outcome, "forked from": run.forked_from}
    for name, fact in facts.items():
        if fact is not None:
            print(f"{name + ':':13}{fact}")
    for question in run.questions:
        print(f"{'question:':13}{_line(question)}")
    for answer in store.history(run.id):
        print(f"{answer.at}  {answer.kind}  {answer.request} -> {_json(answer.value)}")


def _line(question: Question) -> str:
    kind = " or ".join(map(repr, question.choices))
    if not kind and question.schema != {"type": "string"}:
        kind = _json(question.schema)
    return f"{question.at}  {question.text}{kind and f'  ({kind})'}"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _answer(arguments: argparse.Namespace) -> None:
    RunStore(arguments.store).answer(arguments.run, arguments.at, arguments.text)


def _fork(arguments: argparse.Namespace) -> None:
    store = RunStore(arguments.store)
    value: object = arguments.text
    if any(answer.at == arguments.at and answer.kind == "tool" for answer in store.history(arguments.run)):
        try:
            value = json.loads(arguments.text)
        except ValueError:
            raise ValueError(
                f"the result of the tool at {arguments.at} must be JSON, not {arguments.text!r}; quote a text: "
                f"{_json(arguments.text)}"
            ) from None
    print(store.fork(arguments.run, arguments.at, value, run_id=arguments.run_id))


def _delete(arguments: argparse.Namespace) -> None:
    for run in arguments.runs:
        RunStore(arguments.store).delete(run)
