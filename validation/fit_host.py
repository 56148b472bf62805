"""What the hosts of `workloads/software` need, from the calibration halves of measurements.

    python -m validation.fit_host DATA_FOLDER

prints for nanotron the microseconds of everything that it issues, and what each rank of a tp group adds to a
collective, in host-bound rows (tp 4 and 8, up to 2 sequences a micro-batch: a layer and micro-batch takes as
long whatever its width, the stages and the nodes); for serving engines the median of what is measured beyond
the profile as it stands: added to its `step`, or to `request` beyond that, it is the constant. Takes some
minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from rapid_des.frontend import load_job
from rapid_des.frontend.parts import training_lists
from rapid_des.frontend.software import kernels_of
from validation import DataFolder, is_calibration
from validation.inference import tables, trtllm
from validation.scoring import Topic
from validation.training.nanotron import by_cost, dimensions

NANOTRON = "rapid/hf_ultrascale_nanotron_h100_bench_measured.csv"
LONGEST_PROMPT_MS = 60.0
"""First tokens that took longer say nothing of a fixed time."""
SINGLE_GPU = "fp16/tp1"
"""Cases of the static sweep whose steps hold no communication and whose kernels are the best known."""


def nanotron(data: DataFolder) -> tuple[float, float]:
    """Return the microseconds of everything issued, and of each rank of a tp group and collective.

    A layer's time is t + r * tp for both tp: t is all that it issues, r its collectives.
    """
    four, eight = (median(_layer_times(data, tp)) for tp in ("4", "8"))
    kernels, collectives = _issued()
    return (2 * four - eight) / (kernels + collectives), (eight - four) / 4 / collectives


def _layer_times(data: DataFolder, tp: str) -> Iterator[float]:
    """Yield the microseconds of a layer and micro-batch in host-bound rows of the calibration half."""
    for record in data.read(NANOTRON):
        runs = (record["status"], record["after_pp_fix"], record["tp"]) == ("Success", "True", tp)
        if not runs or not is_calibration(record["name"]) or record["mbs"] not in {"1", "2"}:
            continue
        if record.count("hidden_size") > 4096 or record.count("batch_accum") < 32:
            continue  # layers so wide that the GPU is the slower one, and what the step's ends take
        sequences = record.count("mbs") * record.count("batch_accum") * record.count("dp")
        gpus, pp = record.count("dp") * record.count("tp") * record.count("pp"), record.count("pp")
        step = 4096 * sequences / (record.time("tok/s/gpu") * gpus)
        fullest = max(by_cost(dimensions(record), pp))
        yield 1e6 * step / (record.count("batch_accum") + pp - 1) / fullest


def _issued() -> tuple[int, int]:
    """Return how many kernels and collectives a layer and micro-batch is."""
    split = {"tp": "4", "pp": "1", "dp": "1", "sequence_parallel": "true"}
    settings = {f"parallelism.{axis}": size for axis, size in split.items()}
    lists = training_lists(load_job("llama2_7b_train", settings={"software": "nanotron", **settings}))
    block = [one for key, found in lists.items() if key.section.name == "block" for one in found]
    kernels = sum(kernels_of(one.operator) for one in block if one.operator is not None)
    return kernels, sum(one.operator is None for one in block)


def beyond(topic: Topic) -> list[float]:
    """Return the milliseconds that calibration rows measure beyond their predictions."""
    found = (row for row in topic.rows() if row.predicted is not None and is_calibration(row.case_id))
    if topic.name.endswith("ttft"):
        found = (row for row in found if row.measured < LONGEST_PROMPT_MS)
    if "trtllm" in topic.name:
        found = (row for row in found if SINGLE_GPU in row.case_id)
    tokens = 1
    if "kundu" in topic.name:  # whole requests of 200 tokens; on one GPU there are no sums to wait for
        found, tokens = (row for row in found if row.case_id.endswith("tp1")), 200
    return [(row.measured - row.predicted) / tokens for row in found if row.predicted is not None]


def main(folder: str) -> None:
    """Print every constant's evidence."""
    data = DataFolder(Path(folder), split=True)
    issued, rank = nanotron(data)
    print(f"nanotron: {issued:.1f} us each, {rank:.1f} us more a rank of a tp group and collective")
    wanted = {"inference/nim/itl", "inference/nim/ttft", "inference/koyeb", "inference/trtllm-static/tpot"}
    for topic in (*tables.topics(data), *trtllm.topics(data)):
        if topic.name in wanted | {"inference/kundu/H100"}:
            rows = beyond(topic)
            print(f"{topic.name}: median {median(rows):+.2f} ms beyond the profile ({len(rows)} rows)")


if __name__ == "__main__":
    main(sys.argv[1])
