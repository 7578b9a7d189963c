"""The interface of a corrector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from hive.server.request_tag import RequestError, shown, shown_key

DEFAULT_SHARE = 0.15

Settings = Mapping[str, Callable[[str, Any], None]]
"""By name of a setting, its check: called with the field and the value, it raises a :class:`RequestError`."""


@dataclass(frozen=True, slots=True)
class PlacedRun:
    """A run of placed tokens of one segment, in a request's row of slots."""

    start: int
    """Index of the first token in the row."""
    end: int
    """Index behind the last one."""
    offset: int = 0
    """Index of the first token within its segment; the radix tree may have served the tokens before it."""

    def __len__(self) -> int:
        return self.end - self.start


class Corrector(ABC):
    """Chooses which placed tokens to recompute.

    Stored KV was computed in another context than the one it is placed in.  The more of it is recomputed, the closer
    the result is to the exact one, and the longer the first token takes.
    """

    kind: ClassVar[str]
    """Its name in requests and in the server's flag."""
    settings: ClassVar[Settings] = {}
    """The parameters of the class that requests may set."""
    probes: ClassVar[bool] = False
    """Whether it needs the deviation of the placed values, which takes a pass through the first layers."""

    @classmethod
    def of_request(cls, settings: Mapping[str, Any], field: str) -> Self:
        """Create the corrector with the settings of a request.

        Raises:
            RequestError: with the invalid setting (within ``field``) and its rule.
        """
        for key, value in settings.items():
            where = f"{field}.{shown_key(key)}"
            if key not in cls.settings:
                known = ", ".join(cls.settings) or "no settings"
                raise RequestError(where, f"is unknown: {cls.kind!r} takes {known}")
            cls.settings[key](where, value)
        return cls(**settings)

    @abstractmethod
    def select(self, placed: Sequence[PlacedRun], deviation: NDArray[np.float32] | None = None) -> list[int]:
        """Return the indices to recompute, ascending.

        Args:
            placed: ascending and disjoint.
            deviation: of all placed tokens in order, float32 ``[tokens]``: squared distance, at the check layer,
                between the values computed in this context and the placed ones.  None unless :attr:`probes`.
        """

    @abstractmethod
    def most(self, placed: Sequence[PlacedRun]) -> int:
        """Return the maximum number of indices that :meth:`select` returns, whatever the deviation."""


def check_share(field: str, value: Any) -> None:
    """Check a part of the placed tokens."""
    if type(value) not in (int, float) or not 0.0 <= value <= 1.0:
        raise RequestError(field, f"must be a number from 0 to 1, got {shown(value)}")


def check_count(field: str, value: Any) -> None:
    """Check a number of tokens."""
    if type(value) is not int or not 1 <= value <= 2**31 - 1:
        raise RequestError(field, f"must be an integer of at least 1, got {shown(value)}")
