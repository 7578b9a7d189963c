"""The text of an answer that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence

from hive_frontend.client.contract import OnText


class StreamedText:
    """Delivers a growing text, but holds back its end while that may be the beginning of a stop string."""

    def __init__(self, on_text: OnText, stops: Sequence[str]) -> None:
        self._on_text = on_text
        self.stops = stops
        self._handed = 0
        self.text = ""
        """All text received so far."""

    def grow(self, text: str) -> None:
        """Set all text received so far, and deliver what is new."""
        self.text = text
        self._hand_out(self._certain())

    def finish(self, matched: object) -> str:
        """Deliver the rest, and return the whole text. It ends before the stop string `matched`, if there is one."""
        if isinstance(matched, str) and matched:
            self.text = self.text.partition(matched)[0]
        self._hand_out(len(self.text))
        return self.text

    def _certain(self) -> int:
        """Return the position at which the first stop string begins, or may begin."""
        text, start, end = self.text, self._handed, len(self.text)
        for stop in self.stops:
            found = text.find(stop, start, end)
            if found >= 0:
                end = found
                continue
            for size in range(min(len(stop) - 1, end - start), 0, -1):
                if text.endswith(stop[:size], start, end):
                    end -= size
                    break
        return end

    def _hand_out(self, end: int) -> None:
        if end > self._handed:
            self._on_text(self.text[self._handed : end])
            self._handed = end
