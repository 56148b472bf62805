"""How many simulations `search` needs to find what a whole sweep finds: twenty seeds a sampler.

    python -m validation.search_seeds [STUDY ...]

sweeps each study once (shipped ones by name; default: `splits_64`, every split of Llama 3.1 70B over 64 GPUs,
and the same with micro-batch and recomputation as axes too) and prints a table: of all seeds the median and
the most points that were simulated until the best one was. A point that fits nowhere counts as well. Points
are looked up where a search asks for them, which is why twenty seeds cost no more than one.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Generator, Iterable, Iterator
from typing import Any, Self

from msgspec import structs

from rapid_des.executors import Done, Meanwhile, Outcome
from rapid_des.studies.points import measured
from rapid_des.studies.search import search
from rapid_des.studies.spaces import Study, load_study
from rapid_des.studies.worker_pools import executor_of
from rapid_des.values import replace

Outcomes = dict[tuple[Any, str], Outcome[Any]]
"""By a point's settings and mode."""
ESTIMATED = "analytical"
SEEDS = 20
SHIPPED = "splits_64"
HOWS = (("estimates, then tpe", "tpe", 3), ("tpe alone", "tpe", 0), ("random", "random", 0))
"""Names of ways to search, their sampler, and how many points come first by their estimates."""


class Known:
    """An executor that looks outcomes up, and is interrupted once it has shown the best."""

    workers = 1

    def __init__(self, outcomes: Outcomes, best: float) -> None:
        self.outcomes, self.best, self.shown = outcomes, best, False

    def start(self) -> None:
        """Do nothing."""

    def map(
        self,
        function: Any,  # noqa: ARG002
        items: Iterable[Any],
        meanwhile: Meanwhile | None = None,  # noqa: ARG002
    ) -> Generator[tuple[int, Outcome[Any]], None, None]:
        """Yield every item's position and what is known of it."""
        if self.shown:
            raise KeyboardInterrupt
        for place, item in enumerate(items):
            outcome = self.outcomes[item.settings, item.mode]
            self.shown |= item.mode != ESTIMATED and _step(outcome) == self.best
            yield place, outcome

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _step(outcome: Outcome[Any]) -> float:
    return float(outcome.value["step_time_s"]) if isinstance(outcome, Done) else math.inf


def larger(study: Study) -> Study:
    """Return the same study with micro-batch and recomputation as axes too."""
    axes = {**study.spec.axes, "job.training.micro_batch": [1, 2], "job.training.recompute": ["none", "full"]}
    return load_study({**structs.asdict(study.spec), "axes": axes})


def known_points(study: Study) -> Outcomes:
    """Return what every point of a study comes to, and its estimate."""
    points = [case.point for case in study.cases()]
    points += [replace(point, mode=ESTIMATED) for point in points]
    with executor_of() as crew:
        done = crew.map(measured, points)
        return {(points[place].settings, points[place].mode): outcome for place, outcome in done}


def needed(study: Study, known: Outcomes, sampler: str, warm: int) -> list[int]:
    """Return by seed how many points are simulated until the best one is."""
    best, counts = min(_step(outcome) for (_, mode), outcome in known.items() if mode != ESTIMATED), []
    for seed in range(SEEDS):
        looked_up = Known(known, best)
        found = search(study, trials=1 << 20, sampler=sampler, warm=warm, seed=seed, executor=looked_up)
        counts.append(len(found.rows))
    return counts


def table(name: str, study: Study) -> Iterator[str]:
    """Yield the rows of one study."""
    known = known_points(study)
    every = list(study.cases())
    fit = sum(mode != ESTIMATED and isinstance(one, Done) for (_, mode), one in known.items())
    for label, sampler, warm in HOWS:
        counts = sorted(needed(study, known, sampler, warm))
        middle = statistics.median(counts)
        yield (
            f"| {name} | {len(every)} | {fit} | {label} | {middle:g} | {middle / len(every):.1%} "
            f"| {counts[-1]} | {sum(count * 10 <= len(every) for count in counts)} of {SEEDS} |"
        )


def main(names: list[str]) -> None:
    """Print the table."""
    print("| study | points | fit | search | median | of all | most | within a tenth |")
    print("|---|---:|---:|---|---:|---:|---:|---:|")
    for name in names or [SHIPPED]:
        study = load_study(name)
        print(*table(name, study), sep="\n", flush=True)
        if name == SHIPPED:
            print(*table(f"{name}, micro-batch, recomputation", larger(study)), sep="\n", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
