"""The trace of a training step: it ends, it does the work, it sends what the table says."""

import pytest

from rapid_des.frontend import build

SPLITS = [
    {},
    {"tp": 2},
    {"tp": 2, "sequence_parallel": "true"},
    {"pp": 2},
    {"pp": 4, "dp": 2},
    {"tp": 2, "pp": 2, "dp": 2, "sequence_parallel": "true"},
]


def settings(split):
    return [(f"parallelism.{axis}", str(size)) for axis, size in split.items()]


@pytest.mark.parametrize("rendezvous", [True, False])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_every_split_and_schedule_runs_to_its_end(tiny, prices, replay, split, schedule, rendezvous):
    for extra in ([], [("training.overlap_pipeline", "false")], [("model.tied_embeddings", "true")]):
        job = tiny(*settings(split), ("training.schedule", schedule), *extra)
        replay(build(job, prices).traces, rendezvous=rendezvous)
