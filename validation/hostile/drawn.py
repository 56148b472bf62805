"""Settings drawn from a file format: any of its keys, and a value of the kind that may stand there."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from msgspec import inspect as types

from rapid_des.config.specs import Spec
from rapid_des.device.spec import DeviceSpec
from rapid_des.frontend.servers import ServingSpec
from rapid_des.frontend.spec import JobSpec
from rapid_des.machine import MachineSpec
from rapid_des.units import Quantity
from validation.hostile.sample import Sample, of

_WHOLE = (0, 1, 2, 3, 4, 5, 7, 8, 16, 64, 100)
_REAL = (0, 1e-9, 0.1, 0.25, 0.5, 0.9, 1, 1.5, 2, 10, 1e6)
_WORDS = (
    "x",
    "nccl",
    "ring",
    "attention.qkv",
    "ffn.in",
    "llama2_7b",
    "a100_sxm_80gb",
    "vllm_v1",
    "0",
    "switch0",
    "nvlink",
)
_MODES = ("flattened", "hierarchical", "hybrid", "analytical")
_MODEL = """model:
  {hidden: 256, layers: 4, vocabulary: 1024, norm: rms_norm, position: rope, max_positions: 4096, tied_embeddings: false,
   attention: {heads: 8, kv_heads: 4, head_dim: 32}, feed_forward: %s}
"""
_DENSE = _MODEL % "{activation: swiglu, hidden: 512}"
_EXPERTS = _MODEL % "{kind: experts, experts: 8, topk: 2, hidden: 128, activation: swiglu}"
_TRAINED = """phase: training
parallelism: {tp: 2, pp: 2, dp: 2}
training: {global_batch: 8, micro_batch: 1, sequence_length: 256, zero_stage: 1}
"""
_SERVED = """phase: inference
parallelism: {tp: 2}
inference: {batch: 4, prompt_length: 64, output_length: 5}
"""


def settings(root: str, spec: type[Spec]) -> Callable[[random.Random], list[str]]:
    """Return what draws one to three settings of a file format, as words of a command line."""
    kind = types.type_info(spec)

    def draw(chance: random.Random) -> list[str]:
        words = []
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            path, value = _setting(chance, kind)
            words += ["--set", f"{root}.{'.'.join(path)}={json.dumps(value)}"]
        return words

    return draw


def _setting(chance: random.Random, kind: types.Type) -> tuple[list[str], object]:
    """Return a path of keys, and what is to stand there."""
    part = _part(chance, kind)
    if not isinstance(part, types.StructType) or not part.fields:
        return [], _value(chance, part)
    field = chance.choice(part.fields)
    structs = [each for each in _parts(field.type) if isinstance(each, types.StructType)]
    if structs and chance.random() < 0.85:
        path, value = _setting(chance, chance.choice(structs))
        return [field.encode_name, *path], value
    return [field.encode_name], _value(chance, field.type)


def _parts(kind: types.Type) -> tuple[types.Type, ...]:
    if isinstance(kind, types.Metadata):
        return _parts(kind.type)
    return kind.types if isinstance(kind, types.UnionType) else (kind,)


def _part(chance: random.Random, kind: types.Type) -> types.Type:
    part = chance.choice(_parts(kind))
    return _part(chance, part) if isinstance(part, types.Metadata | types.UnionType) else part


def _value(chance: random.Random, kind: types.Type) -> Any:
    part = _part(chance, kind)
    match part:
        case types.IntType() | types.FloatType():
            numbers = _WHOLE if isinstance(part, types.IntType) else _REAL
            return chance.choice([number for number in numbers if _within(part, number)])
        case types.BoolType():
            return chance.random() < 0.5
        case types.LiteralType():
            return chance.choice(part.values)
        case types.NoneType():
            return None
        case types.StructType():
            return _struct(chance, part)
        case types.CustomType() if issubclass(part.cls, Quantity):
            return f"{chance.choice(_REAL)} {part.cls.example.partition(' ')[2] or '/s'}"
    return _several(chance, part)


def _within(kind: types.IntType | types.FloatType, number: float) -> bool:
    least, most = kind.ge, kind.le
    return (least is None or number >= least) and (most is None or number <= most)


def _several(chance: random.Random, kind: types.Type) -> Any:
    match kind:
        case types.ListType() | types.VarTupleType():
            return [_value(chance, kind.item_type) for _ in range(chance.randrange(4))]
        case types.TupleType():
            return [_value(chance, each) for each in kind.item_types]
        case types.DictType():
            return {
                chance.choice(_WORDS): _value(chance, kind.value_type) for _ in range(chance.randrange(3))
            }
    return chance.choice(_WORDS)


def _struct(chance: random.Random, kind: types.StructType) -> dict[str, Any]:
    tag = {} if kind.tag_field is None else {kind.tag_field: kind.tag}
    stated = [field for field in kind.fields if field.required or chance.random() < 0.2]
    return tag | {field.encode_name: _value(chance, field.type) for field in stated}


def _in_a_mode(draw: Callable[[random.Random], list[str]]) -> Callable[[random.Random], list[str]]:
    return lambda chance: [*draw(chance), "--mode", chance.choice(_MODES)]


def drawn(machine: str) -> dict[str, Sample]:
    """Return the kinds whose settings are drawn from file formats; the machine stays as it is in time."""
    machine = machine.replace(", from: 1 ms, until: 2 ms", "")
    run, job = "run|@/j.yaml|--on|@/m.yaml", settings("job", JobSpec)
    kinds = {
        "keys job": (run, _DENSE + _TRAINED, _in_a_mode(job)),
        "keys experts": (run, _EXPERTS + _TRAINED, _in_a_mode(job)),
        "keys served": (run, _DENSE + _SERVED, _in_a_mode(job)),
        "keys experts served": (run, _EXPERTS + _SERVED, _in_a_mode(job)),
        "keys machine": (run, _DENSE + _TRAINED, _in_a_mode(settings("machine", MachineSpec))),
        "keys device": (run, _DENSE + _TRAINED, _in_a_mode(settings("device", DeviceSpec))),
        "keys serve": (
            "serve|@/j.yaml|--on|@/m.yaml|--requests|8|--arrivals|poisson rate=4/s",
            _DENSE + _SERVED,
            settings("job.serving", ServingSpec),
        ),
    }  # fmt: skip
    return {
        name: replace(of(command, j_dot_yaml=text, m_dot_yaml=machine), draw=draw)
        for name, (command, text, draw) in kinds.items()
    }
