"""How often something may happen: so many at once, and on average no more than so many in a while.

Owns the counting alone. Whether one waits, or refuses, is decided by its callers; it sleeps for nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Allowance"]


class Allowance:
    """At most `count` at once, and `count` in every so many seconds after that; a count of 0 is no limit.

    >>> now = 0.0
    >>> allowance = Allowance(2, 1.0, clock=lambda: now)
    >>> allowance.wait(), allowance.wait(), allowance.wait()
    (0.0, 0.0, 0.5)
    """

    def __init__(self, count: int, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._step = seconds / count if count else 0.0
        self._slack = seconds - self._step / 2  # half a step, so that no rounding makes one wait for nothing
        self._clock = clock
        self._busy_until = clock()  # when all that happened would be over, were it evenly spread

    def wait(self) -> float:
        """Seconds until one more may happen. 0: it may now, and is counted."""
        if not self._step:
            return 0.0
        now = self._clock()
        ahead = max(self._busy_until - now, 0.0)
        if ahead > self._slack:
            return ahead - self._slack + self._step / 2
        self._busy_until = now + ahead + self._step
        return 0.0
