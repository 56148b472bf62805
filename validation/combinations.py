"""Drawn training jobs, any choice with any other: each runs in every mode or is refused by name.

    python -m validation.combinations [--jobs 200] [--seed 0]

draws layers, parallelisms, schedules, sharding, recomputation, optimizers, formats, routing, software and a
machine until so many jobs have run, and compares modes: `hierarchical` may be shorter than `flattened` by
what its note bounds, and by 2 % for what its first note says it leaves out besides. It prints what ran, what
was refused by key, and every job whose modes disagree, with its seed; the command then ends with 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, TypeAlias

import rapid_des as rd
from rapid_des.frontend.schedules import SCHEDULES

Tree: TypeAlias = dict[str, Any]
MODES = ("flattened", "hierarchical", "analytical")
BESIDES = 0.02
"""What `hierarchical` may leave out beside what its bound is of, relative to the step."""
MACHINES = ("dgx_h100_x8", "hgx_b200_x2", "torus2d_ring_a100_64", "gb200_nvl72", "perlmutter_32")
DENSE: Tree = {"activation": "swiglu", "hidden": 1024}
MIXERS: Sequence[Tree] = (
    {"heads": 8},
    {"heads": 8, "kv_heads": 4, "window": 256, "qk_norm": "head", "sinks": True},
    {"heads": 16, "kv_heads": 8, "chunk": 256, "softcap": True, "qkv_bias": True},
    {"kind": "latent_attention", "heads": 8, "kv_rank": 64, "head_dim": 32, "rope_dim": 16, "value_dim": 32},
    {"kind": "mamba2", "heads": 8, "head_dim": 64, "state": 32, "groups": 2},
)
FORMATS: Sequence[Tree] = (
    {"gemm": "fp8", "recipe": "delayed"},
    {"gemm": "fp8", "recipe": "current"},
    {"gemm": "fp8", "recipe": "blockwise"},
    {"gemm": "fp4", "recipe": "nvfp4"},
    {"activations": "fp16"},
)
SOMETIMES: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "parallelism": {
        "order": [["pp", "dp", "ep", "tp", "cp"], ["dp", "tp", "cp", "ep", "pp"]],
        "dp_replicate": [2],
    },
    "precision": {"gradients": ["bf16"], "gradient_reduce": ["bf16"], "master_weights": [None]},
    "training": {
        "optimizer": ["adam_8bit", "sgd", "muon"],
        "recompute": ["selective", "full", ["ffn.activation"], ["norm", "ffn"]],
        "offload_activations": [0.5],
        "offload_optimizer": [True],
        "overlap_parameters": [True],
        "overlap_pipeline": [True, False],
        "overlap_gradients": [False],
        "overlap_batches": [True],
        "overlap_tp": ["ring", "userbuffers"],
        "overlap_tp_gradients": [False],
        "sequence_copies": [True],
        "reduce_each_micro_batch": [True, False],
        "prefetch": [0, 2],
        "reshard": [False, 2],
        "batched_messages": [True],
        "scatter_gather": [True],
        "dropout": [True],
        "documents": [[512, 256, 256]],
        "adapters": [{"rank": 8, "matrices": ["ffn.in"]}],
    },
}
"""Keys that a job states now and then, and their values."""


def model(chance: Random) -> Tree:
    """Return a small decoder of any layers."""
    experts = {
        "kind": "experts",
        "experts": 8,
        "topk": 2,
        "hidden": 256,
        "shared_hidden": chance.choice([0, 256]),
    }
    experts |= {"latent": 128} if chance.random() < 0.3 else {}
    drawn: Tree = {
        "hidden": 512, "layers": chance.choice([4, 5, 8]), "attention": chance.choice(MIXERS),
        "feed_forward": experts if chance.random() < 0.4 else DENSE, "norm": "rms_norm",
        "position": chance.choice(["rope", "learned", "none"]), "vocabulary": 8192, "max_positions": 4096,
        "tied_embeddings": chance.random() < 0.5, "norms": chance.choice(["before", "after", "both"]),
        "predictions": int(chance.random() < 0.2),
    }  # fmt: skip
    others: list[Tree] = [
        {"stop": 1, "feed_forward": DENSE},
        {"start": 1, "every": 2, "attention": chance.choice(MIXERS)},
    ]
    drawn["exceptions"] = [other for other in others if chance.random() < 0.3]
    return drawn


def job(chance: Random) -> Tree:
    """Return a job of up to 32 GPUs."""
    sizes = {axis: chance.choice([1, 1, 2, 2, 4]) for axis in ("tp", "cp", "dp", "pp")}
    while sizes["tp"] * sizes["cp"] * sizes["dp"] * sizes["pp"] > 32:
        sizes[chance.choice(list(sizes))] = 1
    schedule = chance.choice(sorted(SCHEDULES) if sizes["pp"] > 1 else ["1f1b", "gpipe"])
    chunks = 2 if SCHEDULES[schedule].chunks is None else 1
    drawn_model = model(chance)
    ranks = sizes["tp"] * sizes["cp"] * sizes["dp"]
    parallelism: Tree = {
        **sizes,
        "chunks": chunks,
        "sequence_parallel": sizes["tp"] > 1 and chance.random() < 0.7,
    }
    if sizes["cp"] > 1:
        parallelism["cp_kind"] = chance.choice(["all_gather", "ring", "ulysses"])
    if drawn_model["feed_forward"] is not DENSE:
        pairs = [(ep, etp) for ep in (1, 2, 4, 8) for etp in (1, 2) if ranks % (ep * etp) == 0]
        parallelism["ep"], parallelism["etp"] = chance.choice(pairs)
    parts = sizes["pp"] * (SCHEDULES[schedule].chunks or chunks)
    cuts = sorted(chance.randint(0, drawn_model["layers"]) for _ in range(parts - 1))
    bounds = [0, *cuts, drawn_model["layers"]]
    parallelism["layers"] = [after - before for before, after in zip(bounds, bounds[1:], strict=False)]
    training = {
        "global_batch": sizes["dp"] * sizes["pp"] * chance.choice([1, 2, 4]), "micro_batch": 1,
        "sequence_length": 1024, "schedule": schedule, "zero_stage": chance.choice([0, 1, 2, 3]),
    }  # fmt: skip
    drawn: Tree = {
        "model": drawn_model,
        "phase": "training",
        "parallelism": parallelism,
        "training": training,
    }
    drawn["precision"] = dict(chance.choice(FORMATS)) if chance.random() < 0.3 else {}
    if "ep" in parallelism:
        drawn["routing"] = {
            "load": chance.choice([{"kind": "balanced"}, {"kind": "zipf", "exponent": 1.0, "seed": 1}]),
            "placement": chance.choice(["contiguous", "eplb"]),
            "dispatcher": chance.choice(["all_to_all", "all_gather", "deepep"]),
            "overlap_shared": chance.random() < 0.3,
        }
    if chance.random() < 0.5:
        drawn["software"] = chance.choice(["torchtitan", "fsdp", "deepspeed", "nanotron", "megatron-2022"])
    for section, keys in SOMETIMES.items():
        stated = {key: chance.choice(values) for key, values in keys.items() if chance.random() < 0.08}
        drawn[section] = {**drawn.get(section, {}), **stated}
    return drawn


def bound(result: rd.Result) -> float:
    """Return what a hierarchical run says that waiting on shared links would add at most, relative to it."""
    notes = (note for note in result.notes if "simulated apart" in note)
    return max((float(note.rpartition("(")[2].rstrip("%)")) / 100 for note in notes), default=0.0)


def problem(results: Mapping[str, rd.Result]) -> str:
    """Return how modes disagree by more than they say; empty: they do not."""
    times = {mode: int(result.step_time) for mode, result in results.items()}
    if len(times) < len(MODES):
        return ""
    whole, apart = times["flattened"], times["hierarchical"]
    if whole > apart * (1 + bound(results["hierarchical"]) + BESIDES) or apart > whole * (1 + BESIDES):
        return f"{times}, bound {bound(results['hierarchical']):.1%}"
    return ""


def attempt(seed: int, count: Callable[[str], None]) -> str:
    """Run one drawn job in every mode and count how it ended; return what is wrong with it, if anything."""
    chance = Random(seed)  # noqa: S311 - no secret
    tree, machine = job(chance), chance.choice(MACHINES)
    results: dict[str, rd.Result] = {}
    try:
        loaded = rd.load_job(tree)
    except rd.RapidDesError as refusal:
        count(f"refused: {getattr(refusal, 'key', '')}")
        return ""
    for mode in MODES:
        try:
            results[mode] = rd.simulate(loaded, rd.load_machine(machine), mode=mode)
        except rd.RapidDesError as refusal:
            count(f"refused by {mode}: {str(refusal).partition(': ')[2][:60]}")
    count(
        "ran in every mode"
        if len(results) == len(MODES)
        else "ran in some mode"
        if results
        else "refused by all"
    )
    wrong = problem(results)
    return f"seed {seed} on {machine}: {wrong}\n{json.dumps(tree)}" if wrong else ""


def main() -> int:
    """Run the campaign; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200, help="how many jobs run")
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args()
    counted: Counter[str] = Counter()
    seed, wrong = wanted.seed, 0
    while counted["ran in every mode"] + counted["ran in some mode"] < wanted.jobs:
        found = attempt(seed, lambda how: counted.update([how]))
        seed, wrong = seed + 1, wrong + bool(found)
        if found:
            print(found, flush=True)
    for how, number in counted.most_common():
        print(f"{number:6,}  {how}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
