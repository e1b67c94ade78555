"""A measure: what was sampled for whom, round by round, and the ratios that Weft set itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from subjects import WEFT, Subject

__all__ = ["ROUNDS", "SECONDS", "Ceiling", "Comparison", "Floor", "Measure", "Target", "interleave"]

SECONDS = float(os.environ.get("BENCH_SECONDS", "2"))  # of one sample
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))


@dataclass(frozen=True)
class Target:
    """A ratio of Weft to somebody else that is to be reached."""

    against: str
    limit: float
    at_least: bool = True

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:g} x {self.against}"

    def judge(self, measure: Measure) -> tuple[str, bool]:
        """What was reached, and whether that is enough."""
        ratio = measure.ratio(self.against)
        return f"{ratio:.2f} x", ratio >= self.limit if self.at_least else ratio <= self.limit


@dataclass(frozen=True)
class Ceiling:
    """A figure of Weft's own that is not to be exceeded."""

    limit: float
    unit: str

    def __str__(self) -> str:
        return f"≤ {self.limit:g} {self.unit}"

    def judge(self, measure: Measure) -> tuple[str, bool]:
        """What was reached, and whether that is enough."""
        return f"{measure.shown(WEFT.name)} {self.unit}", measure.median(WEFT.name) <= self.limit


@dataclass(frozen=True)
class Floor:
    """A figure of Weft's own that is to be reached."""

    limit: float
    unit: str

    def __str__(self) -> str:
        return f"≥ {self.limit:,g} {self.unit}"

    def judge(self, measure: Measure) -> tuple[str, bool]:
        """What was reached, and whether that is enough."""
        return f"{measure.shown(WEFT.name)} {self.unit}", measure.median(WEFT.name) >= self.limit


@dataclass
class Measure:
    """Samples of one quantity by subject; sample n of each comes from the same round."""

    title: str
    unit: str
    samples: Mapping[str, Sequence[float]]
    targets: Sequence[Target | Ceiling | Floor] = ()
    digits: int = 0
    notes: list[str] = field(default_factory=list[str])

    def median(self, name: str) -> float:
        return median(self.samples[name])

    def ratio(self, against: str, of: str = WEFT.name) -> float:
        """The median of the ratios within each round: what slows a whole round does not count."""
        return median(ours / theirs for ours, theirs in zip(self.samples[of], self.samples[against], strict=True))

    def narrowed(self, title: str, names: Mapping[str, str], targets: Sequence[Target | Floor] = ()) -> Measure:
        """The same rounds for some of the subjects, under other names."""
        samples = {shown: self.samples[name] for name, shown in names.items()}
        return Measure(title, self.unit, samples, targets, self.digits, self.notes)

    def shown(self, name: str) -> str:
        return f"{self.median(name):,.{self.digits}f}"


@dataclass(frozen=True)
class Comparison:
    """Weft beside itself: how much of what it does in one case it still does in another. None: for information."""

    measure: Measure
    of: str
    against: str
    limit: float | None = None
    is_drawn: bool = False  # whether the picture has it

    @property
    def ratio(self) -> float:
        return self.measure.ratio(self.against, of=self.of)

    @property
    def is_met(self) -> bool:
        return self.limit is None or self.ratio >= self.limit


def interleave(subjects: Sequence[Subject], rounds: int, sample: Callable[[Subject], float]) -> dict[str, list[float]]:
    """Samples every subject once a round, so that a noisy minute hits all of them; every other round backwards."""
    samples: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    for number in range(rounds):
        for subject in subjects if number % 2 == 0 else reversed(subjects):
            samples[subject.name].append(sample(subject))
    return samples
