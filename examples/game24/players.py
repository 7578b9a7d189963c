"""The players: the model with prompts that explain the game, or with the adapters that were trained for it."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from hive_frontend import Client, HttpClient

from examples.by_agent import ByAgent
from examples.game24 import prompts
from examples.game24.rules import Numbers

PROPOSER: Final = "proposer"
VALUER: Final = "valuer"


class Player(StrEnum):
    """How positions are put to the models. The program and its searches are the same for all."""

    BASE = "base"
    """The served model itself, which has to be shown examples."""
    ROLES = "roles"
    """The adapters called `PROPOSER` and `VALUER` (`bench.training`), which know what to do."""

    def propose(self, numbers: Numbers) -> str:
        """A text whose next words are a step from `numbers`."""
        return prompts.propose_role(numbers) if self is Player.ROLES else prompts.propose(numbers)

    def judge(self, numbers: Numbers) -> str | list[tuple[str, str]]:
        """A text to continue, or a chat, whose next word says what `numbers` are worth."""
        return prompts.value_role(numbers) if self is Player.ROLES else prompts.value(numbers)


def at_server(
    url: str,
    player: Player,
    *,
    distinct: bool = False,
    api_key: str | None = None,
    tenant: str | None = None,
) -> Client:
    """A player at the server at `url`.

    With `distinct` a search gets each proposal for a position once, as long as there are others. Words of the valuer
    are drawn with replacement all the same: how often each comes is what they say. Raises `ValueError` when `url` is
    none.
    """

    def client(agent: str, distinct: bool) -> HttpClient:
        return HttpClient(
            url,
            api_key=api_key,
            model=agent if player is Player.ROLES else None,
            replay="distinct" if distinct else "stepwise",
            tenant=tenant,
        )

    return ByAgent({PROPOSER: client(PROPOSER, distinct), VALUER: client(VALUER, distinct=False)})
