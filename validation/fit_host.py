"""What the hosts of `workloads/software` need, from the calibration halves of measurements.

    python validation/fit_host.py DATA_FOLDER

prints for nanotron the microseconds of everything that it issues in host-bound rows (no pipeline, tp 4 and 8,
one sequence a micro-batch: a layer takes 4.4 ms whatever its width), and for serving engines the median of
what is measured beyond the profile as it stands: added to its `step`, or to `request` beyond that, it is
the constant. Takes some minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from rapid_des.frontend import Job, load_job
from rapid_des.frontend.parts import training_lists
from rapid_des.frontend.software import kernels_of
from rapid_des.validation import DataFolder, is_calibration
from rapid_des.validation.inference import tables, trtllm
from rapid_des.validation.scoring import Topic

NANOTRON = "rapid/hf_ultrascale_nanotron_h100_bench_measured.csv"
LONGEST_PROMPT_MS = 60.0
"""First tokens that took longer say nothing of a fixed time."""
SINGLE_GPU = "fp16/tp1"
"""Cases of the static sweep whose steps hold no communication and whose kernels are the best known."""


def nanotron(data: DataFolder) -> Iterator[float]:
    """Yield the microseconds of everything issued in a micro-batch of each host-bound row."""
    for record in data.read(NANOTRON):
        tp, length, waits = record["tp"], 4096, float(record["batch_accum"] or 0)
        plain = (record["status"], record["pp"], record["mbs"]) == ("Success", "1", "1")
        if not plain or tp not in {"4", "8"} or waits < 32 or not is_calibration(record["name"]):
            continue
        if record["after_pp_fix"] == "True" or (tp == "4" and record.count("hidden_size") > 3072):
            continue  # other runs of another time, and layers so wide that the GPU is the slower one
        gpus = record.count("dp") * record.count("tp")
        micro_batch = float(record["gbs"]) * length / (record.time("tok/s/gpu") * gpus) / waits
        yield 1e6 * micro_batch / _issued(_job(record["num_layers"], tp))


def _job(layers: str, tp: str) -> Job:
    split = {"tp": tp, "pp": "1", "dp": "1", "sequence_parallel": "true"}
    settings = {f"parallelism.{axis}": size for axis, size in split.items()}
    others = {"software": "nanotron", "model.layers": layers, "model.tied_embeddings": "true"}
    return load_job("llama2_7b_train", settings={**others, **settings})


def _issued(job: Job) -> int:
    """Return how many kernels and collectives a micro-batch of a job without stages is."""
    counts = {
        key: sum(1 if one.operator is None else kernels_of(one.operator) for one in operations)
        for key, operations in training_lists(job).items()
        if key.section.name != "norms"
    }
    layers = job.model.spec.layers
    return sum(count * (layers if key.section.name == "block" else 1) for key, count in counts.items())


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
    each = sorted(nanotron(data))
    print(f"nanotron: {median(each):.1f} us ({each[0]:.1f} to {each[-1]:.1f}, {len(each)} rows)")
    wanted = {"inference/nim/itl", "inference/nim/ttft", "inference/koyeb", "inference/trtllm-static/tpot"}
    for topic in (*tables.topics(data), *trtllm.topics(data)):
        if topic.name in wanted | {"inference/kundu/H100"}:
            rows = beyond(topic)
            print(f"{topic.name}: median {median(rows):+.2f} ms beyond the profile ({len(rows)} rows)")


if __name__ == "__main__":
    main(sys.argv[1])
