"""An answer that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence

from hive_frontend.client.contract import OnText


class StreamedText:
    """Hands a growing text on, but for what a stop string may still take away."""

    def __init__(self, on_text: OnText, stops: Sequence[str]) -> None:
        self._on_text = on_text
        self.stops = stops
        self._handed = 0
        self.text = ""
        """All that came so far."""

    def grow(self, text: str) -> None:
        """`text` is all that came so far."""
        self.text = text
        self._hand_out(self._certain())

    def finish(self, matched: object) -> str:
        """The whole text; it ends before the stop string `matched`, if the server says that one was."""
        if isinstance(matched, str) and matched:
            self.text = self.text.partition(matched)[0]
        self._hand_out(len(self.text))
        return self.text

    def _certain(self) -> int:
        """Where the first stop string begins, or may begin."""
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
