"""Limit rates: messages per second (`Pace`), and bursts with an average (`Allowance`).

Pace: so many messages in a second, and no more.

Owns the counting. What is done with a message that came too soon is for its sender to say.

How often something may happen: so many at once, and on average no more than so many in a while.

Owns the counting alone. Whether one waits, or refuses, is decided by its callers; it sleeps for nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from time import monotonic


class Pace:
    """How often something may be said, and how often it was; a rate of 0 is no limit.

    >>> pace = Pace(2)
    >>> [pace.allows() for _ in range(3)], pace.dropped
    ([True, True, False], 1)
    """

    __slots__ = ("_rate", "_said", "_since", "dropped", "untold")

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._said = 0  # in the second that began at:
        self._since = monotonic()
        self.dropped = 0  # messages that came too soon
        self.untold = 0  # those of them that nobody has been told of; whoever tells it takes it back

    def allows(self, *, urgent: bool = False) -> bool:
        """Whether one more may go out now. What is urgent has as much room again."""
        if not self._rate:
            return True
        now = monotonic()
        if now - self._since >= 1:
            self._since = now
            self._said = 0
        if self._said >= (2 * self._rate if urgent else self._rate):
            self.dropped += 1
            self.untold += 1
            return False
        self._said += 1
        return True


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
