"""Decide which tasks may run now: a process has places for so many, and callers take turns.

A caller may use at most half of the places that other callers leave free, so that tasks which run for hours never keep
all others waiting. The only client of a server, on stdio, may use all.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.server.tasks.records import owner_of

_ONLY_CLIENT = owner_of("")  # the caller on stdio, and in the same process

Begin = Callable[[], object]  # is called when a task has a place


class Places:
    """The places for running tasks of one process, and the tasks that wait for one.

    >>> places, begun = Places(4), []
    >>> for task in ("a1", "a2", "a3"):
    ...     places.take(task, "ann", lambda task=task: begun.append(task))
    >>> places.take("b1", "bob", lambda: begun.append("b1"))
    >>> begun, list(places.waiting)
    (['a1', 'a2', 'b1'], ['a3'])
    >>> places.leave("a1"), places.leave("b1")
    (None, None)
    >>> begun
    ['a1', 'a2', 'b1', 'a3']
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: dict[str, str] = {}  # caller, by id of the task
        self._counts: dict[str, int] = {}  # places of each caller
        self._kept = 0  # places that were kept so far
        self._queues: dict[str, dict[str, Begin]] = {}  # by caller; the one whose turn is next comes first

    @property
    def waiting(self) -> list[str]:
        """The ids of the tasks that wait for a place."""
        return [id for queue in self._queues.values() for id in queue]

    def __contains__(self, id: str) -> bool:
        return id in self._taken or any(id in queue for queue in self._queues.values())

    def __len__(self) -> int:
        return len(self._taken) + sum(map(len, self._queues.values()))

    def take(self, id: str, owner: str, begin: Begin) -> None:
        """Call `begin` as soon as the task has a place: now, or later. Does nothing if it has one, or waits for one."""
        queue = self._queues.setdefault(owner, {})
        if id not in self._taken:
            queue.setdefault(id, begin)
        self._fill()

    def leave(self, id: str) -> None:
        """Give the task's place to another task. If the task waits for one, it does not wait any longer."""
        owner = self._taken.pop(id, None)
        if owner is not None:
            self._counts[owner] -= 1
            if not self._counts[owner]:
                del self._counts[owner]
        for queue in self._queues.values():
            queue.pop(id, None)
        self._fill()

    def keep(self, id: str) -> str:
        """Keep the place of a task that does not need it any more. Return the name by which it is left.

        The task may get another place. Does nothing if it has none.
        """
        self._kept += 1
        name = f"{id} {self._kept}"
        if id in self._taken:
            self._taken[name] = self._taken.pop(id)
        return name

    def withdraw(self, id: str) -> None:
        """Let a task not wait for a place any longer. Does nothing if it has one."""
        if id not in self._taken:
            self.leave(id)

    def waits(self, owner: str) -> int:
        """Return how many tasks of a caller wait for a place."""
        return len(self._queues.get(owner, ()))

    def clear(self) -> None:
        """Let no task wait any longer."""
        self._queues = {}

    def _fill(self) -> None:
        """Give free places to tasks that wait: one to each caller in turn."""
        while (
            owner := next((one for one, queue in self._queues.items() if queue and self._has_room(one)), None)
        ) is not None:
            queue = self._queues.pop(owner)
            id = next(iter(queue))
            begin = queue.pop(id)
            self._queues[owner] = queue  # its next turn comes after those of all others
            self._taken[id] = owner
            self._counts[owner] = self._counts.get(owner, 0) + 1
            begin()
        self._queues = {owner: queue for owner, queue in self._queues.items() if queue}

    def _next(self) -> str | None:
        return next((one for one, queue in self._queues.items() if queue and self._has_room(one)), None)

    def _has_room(self, owner: str) -> bool:
        free, own = self._most - len(self._taken), self._counts.get(owner, 0)
        if owner == _ONLY_CLIENT or own == 0:
            return free > 0
        return own + 1 <= (free + own) // 2
