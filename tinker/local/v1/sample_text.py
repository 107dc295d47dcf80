"""Tokens as text: what can be said of a sample so far, and where it ends."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from tinker.local.v1.texts import Texts

INCOMPLETE = "\ufffd"  # what the first bytes of a character read as


@attrs.frozen
class TokenScore:
    """A token as text, its log-probability (None for the first one of a prompt), and the likeliest ones in its place."""

    token: int
    text: str
    logprob: float | None
    top: Sequence[tuple[str, float]] = ()


class SampleText:
    """One sample on its way to text: characters are given out whole, and never a stop or the beginning of one."""

    def __init__(self, texts: Texts, stops: Sequence[str]) -> None:
        self._texts, self._stops = texts, [stop for stop in stops if stop]
        self._tokens: list[int] = []
        self._begin = self._read = 0
        self._held = ""
        self._new: list[TokenScore] = []
        self.finish_reason: str | None = None
        self.token_count: int = 0

    def add(self, score: TokenScore, stop_reason: str | None) -> str:
        """Take the next token, the last one with its reason; returns the text that can be given out now."""
        if self.finish_reason is not None:
            return ""
        self.token_count += 1
        self._new.append(score)
        is_end = score.token in self._texts.ends or (stop_reason == "stop" and not self._stops)
        if not is_end:
            self._tokens.append(score.token)
        text = self._take(self._decode(whole=is_end or stop_reason is not None))
        if self.finish_reason is None and (is_end or stop_reason is not None):
            return text + self.finish("stop" if is_end else stop_reason or "stop")
        return text

    def finish(self, reason: str) -> str:
        """End the sample; returns the text that was held back."""
        rest, self._held = self._held, ""
        self.finish_reason = self.finish_reason or reason
        return rest

    def drain_scores(self) -> list[TokenScore]:
        """Return the tokens since the last call."""
        scores, self._new = self._new, []
        return scores

    def _decode(self, *, whole: bool) -> str:
        """Return the text of the tokens that were not read yet; nothing while a character is incomplete, unless ``whole``."""
        before = self._texts.decode(self._tokens[self._begin : self._read])
        text = self._texts.decode(self._tokens[self._begin :])
        if not whole and text.endswith(INCOMPLETE):
            return ""
        self._begin, self._read = self._read, len(self._tokens)
        return text[len(before) :]

    def _take(self, text: str) -> str:
        """Return what no stop can begin in, up to the first stop."""
        self._held += text
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self._held = self._held[: min(found)]
            return self.finish("stop")
        kept = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        ready, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        return ready


def _overlap(text: str, stop: str) -> int:
    """Count the characters at the end of a text that a stop begins with."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-size:])), 0)
