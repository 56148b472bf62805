"""The ten configurations of arXiv 2509.22832, priced by native models and by regressors on its own samples.

    python validation/second_seed.py [DATA_FOLDER]

fits a regressor an operator and system (some minutes; needs scikit-learn) and prints a table of the job
files that the paper's cases are here. It prints no step times, so nothing is scored: both predictions stand
side by side, with what share of the kernels' time regressors priced, what the step is made of, and the
paper's parallel timeline (1F1B of the slowest stage, then the slowest optimizer) beside the simulation.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import rapid_des as rd
from rapid_des.device.learned.fit import fit_decomposed
from rapid_des.device.pricing import operator_model
from rapid_des.units import PS_PER_S
from rapid_des.validation import DataFolder
from rapid_des.validation.measurements import Record

FOLDER = "perlmutter_vista_2509.22832"
MACHINES = {"Perlmutter": "perlmutter_32", "Vista": "vista_128"}
DEVICES = {"Perlmutter": "a100_sxm_40gb", "Vista": "gh200"}
COPIED = ("res_add", "bwd")
"""Rows that are no measurement."""


@dataclass(frozen=True)
class Prediction:
    """One configuration under one model."""

    step_s: float
    parts: Mapping[str, float]
    """Shares of the step, by `breakdown`."""
    formula_s: float
    """The paper's parallel timeline from this simulation's own parts."""
    learned: float
    """Of the kernels' time, what regressors priced."""


def job_of(config: Record) -> rd.Job:
    """Return the job file of a configuration."""
    model = config["model"].partition("(")[0].lower().replace("-", "_")
    return rd.load_job(f"{model}_train_pp{config['pp']}_tp{config['mp']}_dp{config['dp']}")


def predict(job: rd.Job, machine: rd.Machine) -> Prediction:
    """Return what a job takes, whether it fits or not."""
    result = rd.simulate(job, machine, allow_oom=True)
    total = result.step_time / PS_PER_S
    parts = {name: time / result.step_time for name, time in result.breakdown.items()}
    rows = result.operators()
    learned = sum(row.time_s for row in rows if row.model.startswith("learned"))
    return Prediction(total, parts, _timeline(job, result), learned / sum(row.time_s for row in rows))


def _timeline(job: rd.Job, result: rd.Result) -> float:
    """Return (m + p - 1) times the slowest stage's forward and backward, and the slowest optimizer."""
    stages, passes = job.stages, job.micro_batches
    steady, ends = [], []
    for stage in range(stages):
        rank = job.layout.groups(("pp",))[0][stage]
        rows = result.operators(rank)
        passing = sum(row.time_s for row in rows if row.operator.startswith(("forward.", "backward.")))
        spent = result.rank_breakdown(rank)
        steady.append((passing + spent.get("tp", 0) / PS_PER_S) / passes)
        ends.append(sum(row.time_s for row in rows) - passing + spent.get("dp", 0) / PS_PER_S)
    return (passes + stages - 1) * max(steady) + max(ends)


def learned_machine(data: DataFolder, system: str, folder: Path) -> rd.Machine:
    """Return a system whose operators and collectives are those of its samples, where it has any."""
    native = rd.load_machine(MACHINES[system])
    rows = [
        record
        for record in data.read(f"{FOLDER}/operator_samples.csv")
        if record["system"] == system and not record["flag"] and (record["op"], record["phase"]) != COPIED
    ]
    file, refused = fit_decomposed(rows, system, operator_model(native.device), fallback="native")
    file.save(folder / f"{system}.npz")
    for name, why in refused.items():
        print(f"{system}: {name} is refused: {why}", file=sys.stderr)
    samples = [record for record in data.read(f"{FOLDER}/nccl_samples.csv") if record["system"] == system]
    with (folder / f"{system}.csv").open("w", newline="") as written:
        columns = ("op", "nodes", "gpus_per_node", "bytes", "time_us")
        writer = csv.DictWriter(written, columns)
        writer.writeheader()
        writer.writerows({name: record[name] for name in columns} for record in samples if not record["flag"])
    device = folder / f"{system}_device.yaml"
    base = DEVICES[system]
    device.write_text(f"base: {base}\noperators: learned:{system}.npz\n")
    library = {"library": "samples", "file": str(folder / f"{system}.csv")}
    settings = {"device": str(device), "collectives.libraries.default": library}
    return rd.load_machine(MACHINES[system], settings=settings)


def lines(data: DataFolder, folder: Path) -> Iterator[str]:
    """Yield the table, a line a configuration."""
    parts = ("compute", "tp", "dp", "pp", "bubble")
    titles = ("native", "learned", "priced by regressors", ", ".join(parts), "formula / simulated")
    yield f"| configuration | {' | '.join(titles)} |"
    yield "|---|---:|---:|---:|---|---:|"
    learned = {system: learned_machine(data, system, folder) for system in MACHINES}
    for config in data.read(f"{FOLDER}/end_to_end_configs.csv"):
        job = job_of(config)
        plain = predict(job, rd.load_machine(MACHINES[config["system"]]))
        told = predict(job, learned[config["system"]])
        shares = ", ".join(f"{100 * told.parts.get(part, 0):.0f}" for part in parts)
        yield (
            f"| {config['case_id'].removeprefix('zhang25/')} | {plain.step_s:.2f} s | {told.step_s:.2f} s "
            f"| {told.learned:.0%} | {shares} % | {told.formula_s / told.step_s:.3f} |"
        )


if __name__ == "__main__":
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "data"
    with tempfile.TemporaryDirectory() as place:
        for line in lines(DataFolder(source, split=False), Path(place)):
            print(line, flush=True)
