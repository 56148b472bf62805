"""What other simulators predict for measured jobs, beside what this one does: `peers/TOOL/SET`.

The authors of RAPID-LLM ran GenZ, LLMCompass, Vidur, Calculon, STAGE, STG and MLSynth with settings of their
own on published measurements, and keep the predictions with their tool. For each tool and set of measurements
there are two topics of the same rows: the tool's, and `…/rapid_des` with the predictions of our own topic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial

from rapid_des.values import replace
from validation import all_topics
from validation.measurements import DataFolder, Record
from validation.scoring import Row, Topic

PREDICTIONS = "rapid/peer_predictions.csv"


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield two topics for each tool and each of our topics that it has rows of."""
    by_tool = defaultdict[tuple[str, str], list[Record]](list)
    for record in data.read(PREDICTIONS):
        by_tool[record["tool"], record["topic"]].append(record)
    names = sorted({topic for _, topic in by_tool})
    # without names all topics would be asked for, these too
    found = {topic.name: topic for topic in all_topics(data, names)} if names else {}
    for (tool, name), records in sorted(by_tool.items()):
        if (ours := found.get(name)) is not None:
            label = f"peers/{tool}/{name.partition('/')[2]}"
            rows = cache(partial(_rows, ours.rows, records))
            theirs = partial(_side, rows, 0)
            topic = Topic(label, theirs, unit=ours.unit, split=False, begin=ours.begin, abandon=ours.abandon)
            yield topic
            yield replace(topic, name=f"{label}/rapid_des", rows=partial(_side, rows, 1))


def _side(rows: Callable[[], Sequence[tuple[Row, Row]]], side: int) -> Sequence[Row]:
    return [pair[side] for pair in rows()]


def _rows(ours: Callable[[], Sequence[Row]], records: Sequence[Record]) -> Sequence[tuple[Row, Row]]:
    """Return the rows of a tool and ours of the same measurement; several readings of a case have one each.

    A record names its measurement where several of a case differ, as by the number of clients.
    """
    return [
        (Row(row.case_id, row.measured, record.time("predicted")), replace(row, null=None))
        for record in records
        for row in ours()
        if row.case_id == record["case_id"]
        and (not record["measured"] or record.time("measured") == row.measured)
    ]
