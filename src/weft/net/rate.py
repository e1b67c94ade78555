"""Limit how often something happens: `Pace` says which messages to drop, `Allowance` how long to wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from time import monotonic


class Pace:
    """A limit of `rate` messages per second. If `rate` is 0, there is no limit.

    >>> pace = Pace(2)
    >>> [pace.allows() for _ in range(3)], pace.dropped
    ([True, True, False], 1)
    """

    __slots__ = ("_rate", "_said", "_since", "dropped", "untold")

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._said = 0  # number of messages allowed since `_since`
        self._since = monotonic()  # the beginning of the current second
        self.dropped = 0  # number of messages that were not allowed
        self.untold = 0  # number of dropped messages not reported yet; the caller sets it to 0 after a report

    def allows(self, *, urgent: bool = False) -> bool:
        """Return whether a message may be sent now, and count the message. The limit for urgent messages is doubled."""
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
    """A limit of `count` events at once, and of `count` per `seconds` on average. If `count` is 0, there is no limit.

    >>> now = 0.0
    >>> allowance = Allowance(2, 1.0, clock=lambda: now)
    >>> allowance.wait(), allowance.wait(), allowance.wait()
    (0.0, 0.0, 0.5)
    """

    def __init__(self, count: int, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._step = seconds / count if count else 0.0
        self._slack = seconds - self._step / 2  # half a step less, because of rounding errors
        self._clock = clock
        self._busy_until = clock()  # when the events so far would end if they were evenly spread

    def wait(self) -> float:
        """Return 0 and count an event if the event may happen now; otherwise return the number of seconds to wait."""
        if not self._step:
            return 0.0
        now = self._clock()
        ahead = max(self._busy_until - now, 0.0)
        if ahead > self._slack:
            return ahead - self._slack + self._step / 2
        self._busy_until = now + ahead + self._step
        return 0.0

    @property
    def busy_seconds(self) -> float:
        """Seconds until the limit is completely free again."""
        return max(self._busy_until - self._clock(), 0.0)
