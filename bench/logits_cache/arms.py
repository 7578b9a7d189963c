"""The arms: which server answers a request, and under which replay policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from bench.logits_cache.client import Client
from bench.logits_cache.workloads import State

ArmName = Literal["stock", "off", "stepwise", "hotspot", "distinct", "ngram"]
ARM_NAMES: tuple[ArmName, ...] = get_args(ArmName)
POLICIES: tuple[ArmName, ...] = ("off", "stepwise", "hotspot", "distinct")
"""Arms that are one Hive server; their names are those of the policies in the wire format."""
REPLAYING: tuple[ArmName, ...] = ("stepwise", "hotspot", "distinct")


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to serve the same requests."""

    name: ArmName
    client: Client

    @property
    def is_hive(self) -> bool:
        return self.name in POLICIES

    def params(self, params: dict[str, Any], session: str, state: State, sample: int) -> dict[str, Any]:
        """The sampling parameters as this arm gets them: Hive's carry a tag, which others would not know."""
        if not self.is_hive:
            return params
        tag = {"agent": "bench", "session": session, "state": state.name, "sample": sample}
        return {**params, "custom_params": {"hive": {**tag, "replay": self.name}}}


async def answering(arms: Sequence[Arm], state: State) -> tuple[list[Arm], dict[str, str]]:
    """The arms that take a one-token request, and why the others refuse it."""
    taken: list[Arm] = []
    refused: dict[str, str] = {}
    for arm in arms:
        reason = await arm.client.refusal(
            state.input_ids, arm.params({"max_new_tokens": 1}, "probe", state, 0)
        )
        if reason is None:
            taken.append(arm)
        else:
            refused[arm.name] = reason
    return taken, refused
