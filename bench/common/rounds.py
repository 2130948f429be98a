"""Times several steps against each other, in turn within each round, and drops disturbed samples.

Times from different processes, or from different minutes of one, cannot be compared, because memory and neighbours differ. Each
round runs all steps once, so a slow moment hits all of them. Only ratios count.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from common import threads

MAX_DELAY = 0.03  # share of a sample's time that threads may have waited for a core
# After their work, OpenMP workers spin for some milliseconds on the core that the next contender needs.
SETTLE_SECONDS = 0.015


@dataclass(frozen=True)
class Sample:
    seconds: float
    delay: float  # time that threads waited for a core / seconds, summed over threads
    cores: float  # processor time / seconds: how many threads really worked

    @property
    def clean(self) -> bool:
        return self.delay <= MAX_DELAY


@dataclass
class Series:
    samples: list[Sample] = field(default_factory=list)

    @property
    def clean(self) -> list[Sample]:
        return [sample for sample in self.samples if sample.clean]

    @property
    def disturbed(self) -> bool:
        """True if there is no clean sample, so that figures come from disturbed ones."""
        return not self.clean

    def _used(self) -> list[Sample]:
        return self.clean or self.samples

    @property
    def seconds(self) -> float:
        """The 33rd percentile of the clean samples (nearest rank): below the median, because disturbance only adds, and above
        the minimum, which is luck."""
        ordered = sorted(sample.seconds for sample in self._used())
        return ordered[max(0, -(-len(ordered) // 3) - 1)]

    @property
    def median(self) -> float:
        return statistics.median(sample.seconds for sample in self._used())

    @property
    def cores(self) -> float:
        return statistics.median(sample.cores for sample in self._used())


def prepare(step: Callable[[], object]) -> None:
    """Calls the method that prepares a step for timing, if there is one."""
    if before := getattr(step, "prepare", None):
        before()


def sample(step: Callable[[], object]) -> Sample:
    prepare(step)
    time.sleep(SETTLE_SECONDS)
    delay = threads.queue_delay()
    work = time.process_time_ns()
    start = time.perf_counter_ns()
    step()
    wall = time.perf_counter_ns() - start
    work = time.process_time_ns() - work
    delay = threads.queue_delay() - delay
    return Sample(wall * 1e-9, delay / wall, work / wall)


def measure(
    steps: dict[str, Callable[[], object]], counts: list[int], clean: int, limit: int, parts: int = 2
) -> dict[int, dict[str, Series]]:
    """Series by thread count and by name of the step, with `clean` clean samples of each, or as many as `limit` rounds give.
    Thread counts alternate in `parts` parts, not within a round, because a change restarts OpenMP's threads.
    """
    result = {count: {name: Series() for name in steps} for count in counts}
    names = list(steps)

    def all_once() -> None:
        for name in names:
            prepare(steps[name])
            steps[name]()

    gc.collect()
    gc.disable()
    try:
        for part in range(1, parts + 1):
            for count in counts:
                threads.set_threads(count)
                threads.placed(all_once)
                series = result[count]
                for turn in range(-(-limit // parts)):
                    if all(len(one.clean) * parts >= clean * part for one in series.values()):
                        break
                    order = random.Random(turn).sample(names, len(names))  # so that neighbours vary
                    for name in order:
                        series[name].samples.append(sample(steps[name]))
    finally:
        gc.enable()
    return result
