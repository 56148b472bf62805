"""The ten configurations of arXiv 2509.22832, priced by native models and by regressors on its own samples.

    python -m validation.second_seed [DATA_FOLDER] [--system Perlmutter]

fits a regressor an operator and system (two minutes; needs scikit-learn) to four fifths of the samples and
prints, in Markdown,

- errors on the fifth held out, module by module, of the regressors and of the native models, and what is
  refused by name;
- errors of native collectives on the samples that serve as learned communication;
- a table of the job files that the paper's cases are here. It prints no step times, so nothing is scored:
  both predictions stand side by side, with what share of the kernels' time regressors priced, what the step
  is made of, and the paper's parallel timeline (1F1B of the slowest stage, then the slowest optimizer) beside
  the simulation.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

import rapid_des as rd
from rapid_des.device.operators import Operator, OperatorModel
from rapid_des.device.pricing import operator_model
from rapid_des.learned import LearnedFile, shape_of
from rapid_des.learned.decomposition import PARTS, WITHOUT_MEANING, convert, kernels_of
from rapid_des.learned.fit import fit_decomposed, fit_regressor
from rapid_des.units import PS_PER_S, PS_PER_US
from validation import DataFolder
from validation.measurements import Record

FOLDER = "perlmutter_vista_2509.22832"
MACHINES = {"Perlmutter": "perlmutter_32", "Vista": "vista_128"}
DEVICES = {"Perlmutter": "a100_sxm_40gb", "Vista": "gh200"}
COPIED = ("res_add", "bwd")
"""Rows that are no measurement."""
UNFINISHED = "allgather"
"""Vista's: nine of ten rows are flagged, and half of the others are above the 50 GB/s of a link."""


PARTS_OF_STEP = ("compute", "tp", "dp", "pp", "bubble")


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


def held_out(sample: Mapping[str, str]) -> bool:
    """Tell whether a sample is of the fifth that no regressor sees, by its sizes alone."""
    sizes = ",".join(sample[name] for name in ("mp", "b", "l", "h", "dim", "params"))
    return sha256(sizes.encode()).digest()[0] % 5 == 0


def measured(data: DataFolder, system: str) -> list[Record]:
    """Return the module samples of a system that are measurements."""
    return [
        record
        for record in data.read(f"{FOLDER}/operator_samples.csv")
        if record["system"] == system and not record["flag"] and (record["op"], record["phase"]) != COPIED
    ]


def collectives(data: DataFolder, system: str) -> list[Record]:
    """Return the collective and message samples of a system that are measurements."""
    return [
        record
        for record in data.read(f"{FOLDER}/nccl_samples.csv")
        if record["system"] == system and not record["flag"] and record["op"] != UNFINISHED
    ]


def module_errors(data: DataFolder, system: str, file: LearnedFile, native: OperatorModel) -> Iterator[str]:
    """Yield a line a module: mean errors on held-out samples, a backward's two kernels together."""
    by_module: dict[str, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for row in measured(data, system):
        by_module[row["op"]][row["phase"]].append(row)
    theirs = {
        (row["Function"], row["Propagation"]): f"{100 * row.number('Best_error%'):.1f}"
        for row in data.read(f"{FOLDER}/regressor_selection_and_test_error.csv")
        if row["system"] == system and row["kind"] == "operator"
    }
    for name, phases in sorted(by_module.items()):
        paper = ", ".join(theirs.get((name, phase), "-") for phase in phases)
        count = ", ".join(str(len(samples)) for samples in phases.values())
        cells = [_module(name, samples, file, native) for samples in phases.values()]
        learned, models = (", ".join(dict.fromkeys(cell)) for cell in zip(*cells, strict=True))
        yield f"| {system} | {name}: {', '.join(phases)} | {count} | {learned} | {paper} | {models} |"


def _module(
    name: str, samples: Sequence[Record], file: LearnedFile, native: OperatorModel
) -> tuple[str, str]:
    """Return the errors of regressors and of native models, or why there are none."""
    if name in PARTS:
        return _part_errors(samples, native), "a part"
    if not kernels_of(samples[0]):
        return f"refused: {WITHOUT_MEANING[name]}", ""
    tested = [(kernels_of(row), row) for row in samples if held_out(row)]
    learned = [_error(_by_regressors(kernels, file), row) for kernels, row in tested]
    return _mean(learned), _mean([_error(_by_model(kernels, native), row) for kernels, row in tested])


def _by_regressors(kernels: Sequence[Operator], file: LearnedFile) -> float:
    shapes = [shape for kernel in kernels if (shape := shape_of(kernel)) is not None]
    return sum(
        float(file.regressors[shape.name].predict(np.array([shape.sizes], np.float64))[0]) for shape in shapes
    )


def _by_model(kernels: Sequence[Operator], native: OperatorModel) -> float:
    return sum(native.estimate(kernel).duration for kernel in kernels) / PS_PER_US


def _part_errors(samples: Sequence[Record], native: OperatorModel) -> str:
    """Return the errors of a regressor of one part of unfused attention, fitted to four fifths of it."""
    (by_name,) = convert(samples, native).parts.values()
    (parts,) = by_name.values()
    sizes = np.array([part.attention for part in parts], np.float64)
    sizes = sizes[:, sizes.any(axis=0)]  # softmax has no width of heads
    times = np.array([part.time_us for part in parts])
    tested = np.array([held_out(row) for row in samples])
    names = [str(column) for column in range(sizes.shape[1])]
    predicted = fit_regressor(sizes[~tested], times[~tested], names).predict(sizes[tested])
    return _mean((100 * np.abs(predicted / times[tested] - 1)).tolist())


def _error(predicted_us: float, row: Record) -> float:
    return 100 * abs(predicted_us / row.time("time_us") - 1)


def _mean(errors: Sequence[float]) -> str:
    return f"{statistics.fmean(errors):.1f}"


def collective_errors(data: DataFolder, system: str) -> Iterator[str]:
    """Yield a line a group: errors of native all-reduces, over sixteen of the sampled sizes."""
    groups = defaultdict(list)
    for row in collectives(data, system):
        groups[row["op"], row.count("nodes"), row.count("gpus_per_node")].append(row)
    for (operation, nodes, each), rows in sorted(groups.items()):
        tested = sorted(rows, key=lambda row: row.count("bytes"))[:: len(rows) // 16]
        errors = "-"
        if operation == "allreduce":
            sizes = [row.count("bytes") for row in tested]
            benches = rd.bench(rd.load_machine(MACHINES[system]), "all_reduce", sizes, gpus=nodes * each)
            durations = (bench.duration / PS_PER_US for bench in benches)
            errors = _mean([_error(time, row) for time, row in zip(durations, tested, strict=True)])
        yield f"| {system} | {operation}, {nodes} x {each} GPUs | {len(rows)} | by samples | | {errors} |"


def learned_machine(data: DataFolder, system: str, file: LearnedFile, folder: Path) -> rd.Machine:
    """Return a system whose operators and collectives are those of its samples, where it has any."""
    file.save(folder / f"{system}.npz")
    with (folder / f"{system}.csv").open("w", newline="") as written:
        columns = ("op", "nodes", "gpus_per_node", "bytes", "time_us")
        writer = csv.DictWriter(written, columns)
        writer.writeheader()
        writer.writerows({name: record[name] for name in columns} for record in collectives(data, system))
    device = folder / f"{system}_device.yaml"
    device.write_text(f"base: {DEVICES[system]}\noperators: learned:{system}.npz\n")
    library = {"library": "samples", "file": str(folder / f"{system}.csv")}
    settings = {"device": str(device), "collectives.libraries.default": library}
    return rd.load_machine(MACHINES[system], settings=settings)


def configurations(data: DataFolder, system: str, machine: rd.Machine) -> Iterator[str]:
    """Yield a line a configuration of a system, `machine` being the learned one."""
    native = rd.load_machine(MACHINES[system])
    for config in data.read(f"{FOLDER}/end_to_end_configs.csv"):
        if config["system"] != system:
            continue
        job = job_of(config)
        plain, told = predict(job, native), predict(job, machine)
        shares = ", ".join(f"{100 * told.parts.get(part, 0):.0f}" for part in PARTS_OF_STEP)
        yield (
            f"| {config['case_id'].removeprefix('zhang25/')} | {plain.step_s:.2f} s | {told.step_s:.2f} s "
            f"| {told.learned:.0%} | {shares} % | {told.formula_s / told.step_s:.3f} |"
        )


def report(data: DataFolder, systems: Sequence[str], folder: Path) -> Iterator[str]:
    """Yield both tables, lines as they are known."""
    machines = {}
    yield "| system | module | samples | regressors, held out: mean % | the paper's | native: mean % |"
    yield "|---|---|---:|---:|---:|---:|"
    for system in systems:
        native = operator_model(rd.load_machine(MACHINES[system]).device)
        seen = [row for row in measured(data, system) if not held_out(row)]
        file = fit_decomposed(seen, system, native, fallback="native")
        yield from module_errors(data, system, file, native)
        yield from collective_errors(data, system)
        machines[system] = learned_machine(data, system, file, folder)
    yield ""
    titles = ("native", "learned", "priced by regressors", ", ".join(PARTS_OF_STEP), "formula / simulated")
    yield f"| configuration | {' | '.join(titles)} |"
    yield "|---|---:|---:|---:|---|---:|"
    for system, machine in machines.items():
        yield from configurations(data, system, machine)


def main() -> int:
    """Print the tables; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    usual = Path(__file__).parent / "data"
    parser.add_argument("data", nargs="?", type=Path, default=usual, help=f"folder that has {FOLDER}/")
    parser.add_argument("--system", choices=MACHINES, action="append", help="one of the two alone")
    wanted = parser.parse_args()
    try:
        if not (wanted.data / FOLDER).is_dir():
            raise rd.InputError(f"{wanted.data}: has no folder {FOLDER}")
        with tempfile.TemporaryDirectory() as place:
            data = DataFolder(wanted.data, split=False)
            for line in report(data, wanted.system or tuple(MACHINES), Path(place)):
                print(line, flush=True)
        missing = ", ".join(data.absent)
        if missing:
            raise rd.InputError(f"{wanted.data}: has no {missing}")
    except rd.RapidDesError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
