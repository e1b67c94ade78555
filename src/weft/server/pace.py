"""Pace: so many messages in a second, and no more.

Owns the counting. What is done with a message that came too soon is for its sender to say.
"""

from __future__ import annotations

from time import monotonic

__all__ = ["Pace"]


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
