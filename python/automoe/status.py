"""Which path a model's calls took, and why. `model.automoe` is one of these."""

import os
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class FallbackWarning(UserWarning):
    """A call left the engine for Transformers' own forward."""


class Status:
    """`path` and `reasons` tell about the last call, the counts about all of them. `path` is "engine",
    "transformers", or "engine below the head" where only head and loss ran in Transformers.

    `recompute` overrides what a backward pass computes again: "none", "norms" or "layer". Left at None, it is
    "layer" with gradient checkpointing on and "norms" without.
    """

    def __init__(self) -> None:
        self.path: str | None = None
        self.reasons: tuple[str, ...] = ()
        self.engine_calls = 0
        self.fallbacks: Counter[str] = Counter()
        self.recompute: str | None = None
        self._inside_fallback = False

    def ran_on_engine(self) -> None:
        self.engine_calls += 1
        if self._inside_fallback:
            self.path = "engine below the head"
        else:
            self.path, self.reasons = "engine", ()

    @contextmanager
    def falling_back(self, reasons: list[str]) -> Iterator[None]:
        """Around a call of Transformers' forward. Warns once per reason; raises RuntimeError under
        AUTOMOE_STRICT=1. A fallback of the backbone inside one of the whole model is no other one."""
        if self._inside_fallback:
            yield
            return
        self._record(reasons)
        self._inside_fallback = True
        try:
            yield
        finally:
            self._inside_fallback = False

    def _record(self, reasons: list[str]) -> None:
        text = "; ".join(reasons)
        if os.environ.get("AUTOMOE_STRICT", "0") not in ("", "0"):
            raise RuntimeError(f"[coverage] AUTOMOE_STRICT=1: the engine does not cover this call: {text}")
        self.path, self.reasons = "transformers", tuple(reasons)
        for reason in reasons:
            if reason not in self.fallbacks:
                warnings.warn(
                    f"automoe: this call runs in Transformers' own forward: {reason}",
                    FallbackWarning,
                    stacklevel=6,
                )
        self.fallbacks.update(reasons)

    def __repr__(self) -> str:
        if self.path is None:
            return "automoe: not called yet"
        why = f" ({'; '.join(self.reasons)})" if self.reasons else ""
        lines = [f"automoe: the last call ran on {self.path}{why}", f"engine calls: {self.engine_calls}"]
        lines += [f"fallbacks: {count} x {reason}" for reason, count in self.fallbacks.most_common()]
        return "\n".join(lines)
