"""What an evaluation found: its cases, estimates and totals, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from html import escape
from statistics import fmean
from typing import Any

from pydantic import BaseModel, computed_field

from hive_frontend.evaluation.estimates import Estimate, mean, mean_difference, share, share_difference
from hive_frontend.search.totals import Totals, Usage

Score = bool | int | float
_SHOWN_ERRORS = 3


class Case(BaseModel):
    """One run of a program on one item, with its scores."""

    arm: str
    """Name of the program that ran."""
    item: int
    """Position of the item in the dataset."""
    repetition: int
    seed: int
    value: Any = None
    """What the program returned, as JSON; for what JSON cannot express, its `repr`."""
    scores: dict[str, Score] = {}
    error: str | None = None
    """Type and message of the error that ended the program or the scorer."""
    started: float
    """When it started, in seconds since 1970."""
    seconds: float
    usage: Totals
    """Usage of the program."""
    scoring: Usage = Usage()
    """Usage of the scorer."""


class Evaluation(BaseModel):
    """A program on a dataset. `print` it, or store `model_dump_json()`, which has the intervals and totals, too."""

    name: str
    cases: list[Case]
    """By item, then by repetition."""

    @computed_field  # type: ignore[prop-decorator]
    @cached_property
    def scores(self) -> dict[str, Estimate]:
        """The estimate of each score. True and False make a share, in which a case with an error counts as False;
        numbers make a mean, from which cases with an error are left out."""
        return {
            name: share(self._by_item(name)) if self._is_share(name) else mean(self._by_item(name))
            for name in self._names
        }

    @computed_field  # type: ignore[prop-decorator]
    @cached_property
    def totals(self) -> Totals:
        """Usage of the program, in total and per agent, and the time during which at least one case ran."""
        return total_of([case.usage for case in self.cases], wall_s=_covered(self.cases))

    @computed_field  # type: ignore[prop-decorator]
    @property
    def errors(self) -> int:
        """The number of cases that ended with an error."""
        return sum(case.error is not None for case in self.cases)

    def __str__(self) -> str:
        return _text([self])

    def _repr_html_(self) -> str:
        return _html([self])

    @property
    def _names(self) -> list[str]:
        return list(dict.fromkeys(name for case in self.cases for name in case.scores))

    def _is_share(self, name: str) -> bool:
        return all(isinstance(case.scores.get(name, False), bool) for case in self.cases)

    def _by_item(self, name: str) -> list[list[Score]]:
        return list(self._of_items(name, self._is_share(name)).values())

    def _of_items(self, name: str, is_share: bool) -> dict[int, list[Score]]:
        """Return the scores of each item. In a share, a missing one is False."""
        found: dict[int, list[Score]] = {}
        for case in self.cases:
            score = case.scores.get(name, False if is_share else None)
            if score is not None:
                found.setdefault(case.item, []).append(score)
        return found


class Comparison(BaseModel):
    """Several programs on the same dataset. `print` it, or store `model_dump_json()`."""

    arms: dict[str, Evaluation]

    def difference(self, of: str, to: str, score: str | None = None) -> Estimate:
        """Return how much higher the arm `of` scores than the arm `to`, over the items that both have.

        Args:
            score: the name of the score; the first one by default.

        Raises:
            ValueError: if there is no such arm or score.
        """
        for name in (of, to):
            if name not in self.arms:
                raise ValueError(f"there is no arm {name!r}; there are {', '.join(map(repr, self.arms))}")
        higher, lower = self.arms[of], self.arms[to]
        names = list(dict.fromkeys([*higher._names, *lower._names]))
        if score is None and names:
            score = names[0]
        if score not in names:
            raise ValueError(
                f"there is no score {score!r}; there are {', '.join(map(repr, names)) or 'none'}"
            )
        is_share = higher._is_share(score) and lower._is_share(score)
        ours, theirs = higher._of_items(score, is_share), lower._of_items(score, is_share)
        apart = [fmean(ours[item]) - fmean(theirs[item]) for item in ours if item in theirs]
        return share_difference(apart) if is_share else mean_difference(apart)

    @computed_field  # type: ignore[prop-decorator]
    @cached_property
    def differences(self) -> dict[str, dict[str, Estimate]]:
        """The difference of each arm to the first one, by arm and by score."""
        first, *others = self.arms
        return {
            name: {
                score: self.difference(name, first, score)
                for score in dict.fromkeys([*self.arms[name]._names, *self.arms[first]._names])
            }
            for name in others
        }

    def __str__(self) -> str:
        return _text(list(self.arms.values()), self)

    def _repr_html_(self) -> str:
        return _html(list(self.arms.values()), self)


def total_of(parts: Iterable[Totals], *, wall_s: float) -> Totals:
    """Add up usages, in total and per agent."""
    parts = list(parts)
    by_agent: dict[str, list[Usage]] = {}
    for part in parts:
        for agent, usage in part.agents.items():
            by_agent.setdefault(agent, []).append(usage)
    agents = {agent: Usage.sum(usages) for agent, usages in by_agent.items()}
    return Totals(**dict(Usage.sum(parts)), wall_s=wall_s, agents=agents)


def _covered(cases: Iterable[Case]) -> float:
    """Return the length of the union of the times of cases: those that ran at once count once."""
    covered = end = 0.0
    for case in sorted(cases, key=lambda case: case.started):
        begin = max(end, case.started)
        end = max(end, case.started + case.seconds)
        covered += end - begin
    return covered


_COLUMNS: dict[str, Callable[[Evaluation], str]] = {
    "cases": lambda arm: f"{len(arm.cases):,}",
    "errors": lambda arm: f"{arm.errors:,}",
    "requests": lambda arm: f"{arm.totals.requests:,}",
    "generated": lambda arm: f"{arm.totals.tokens_generated:,}",
    "replayed": lambda arm: f"{arm.totals.tokens_replayed:,}",
    "cost": lambda arm: "" if arm.totals.cost is None else f"{arm.totals.cost:.4g}",
    "time": lambda arm: f"{arm.totals.wall_s:,.0f} s",
}


def _rows(arms: Sequence[Evaluation], comparison: Comparison | None) -> list[list[str]]:
    """Return the table: a line of headings, one for each arm, and one for each difference."""
    scores = list(dict.fromkeys(name for arm in arms for name in arm.scores))
    columns = [
        name for name in _COLUMNS if name != "cost" or any(arm.totals.cost is not None for arm in arms)
    ]
    rows = [["", *columns[:2], *scores, *columns[2:]]]
    for arm in arms:
        cells = [_COLUMNS[name](arm) for name in columns]
        estimates = [str(arm.scores[name]) if name in arm.scores else "" for name in scores]
        rows.append([arm.name, *cells[:2], *estimates, *cells[2:]])
    for name, found in comparison.differences.items() if comparison else ():
        estimates = [str(found[score]) if score in found else "" for score in scores]
        rows.append([f"{name} - {arms[0].name}", "", "", *estimates, *[""] * len(columns[2:])])
    return rows


def _errors(arms: Sequence[Evaluation]) -> list[str]:
    """Return a line for each of the first errors."""
    failed = [case for arm in arms for case in arm.cases if case.error is not None]
    lines = [f"{case.arm}, item {case.item}: {case.error}" for case in failed[:_SHOWN_ERRORS]]
    return lines if len(failed) <= _SHOWN_ERRORS else [*lines, f"and {len(failed) - _SHOWN_ERRORS} more"]


def _text(arms: Sequence[Evaluation], comparison: Comparison | None = None) -> str:
    rows = _rows(arms, comparison)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([*lines, *_errors(arms)])


def _html(arms: Sequence[Evaluation], comparison: Comparison | None = None) -> str:
    heading, *rows = _rows(arms, comparison)
    lines = ["<table><thead><tr>", *(f"<th>{escape(cell)}</th>" for cell in heading), "</tr></thead><tbody>"]
    for row in rows:
        lines += ["<tr>", *(f"<td>{escape(cell)}</td>" for cell in row), "</tr>"]
    errors = "".join(f"<li>{escape(line)}</li>" for line in _errors(arms))
    return "".join([*lines, "</tbody></table>", f"<ul>{errors}</ul>" if errors else ""])
