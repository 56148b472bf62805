"""Fit the attention and vector constants of `topologies/devices/families` on the calibration split.

    python -m validation.fit_kernels DATA_FOLDER FAMILY [STEP ...]

needs scipy. Cases whose name has an even sha256 are calibration; nothing else is read. A step fits a few
constants of one section and scope, starting from the family's own file; the next one starts from its result.
The constants that were fitted are printed, with the mean error of both splits; geometry (tiles, blocks an SM
holds, splitting rules) is no subject of a fit: it is the kernels' own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from scipy.optimize import least_squares

from rapid_des.device import Attention, Device, Vector
from rapid_des.device.calibration import DECODE, FLASH, KERNEL, Bounds
from rapid_des.device.operators import Operator, OperatorModel
from rapid_des.device.pricing import operator_model
from rapid_des.device.spec import Constants
from rapid_des.values import replace
from validation import DataFolder, is_calibration
from validation.operators import attention as attention_topics
from validation.operators import vector as vector_topics
from validation.operators.attention import Measured

MOST_ROWS = 400


@dataclass(frozen=True)
class Step:
    """Which rows a step fits, and which constants of which section and scope."""

    section: str
    scope: str
    bounds: Bounds
    chosen: Callable[[Measured], bool]


def attention_step(section: str, scope: str, bounds: Bounds, *, library: str, cache: str) -> Step:
    """Return a step over one library's prefill, decode or MLA rows with one dtype of the cache."""

    def chosen(call: Measured) -> bool:
        operator = call.operators[0]
        if not isinstance(operator, Attention) or call.device.conditions.library != library:
            return False
        return section_of(operator) == section and (operator.kv_dtype or operator.dtype) == cache

    return Step(section, scope, bounds, chosen)


def vector_step(scope: str, kinds: Sequence[str], *, own: bool = False) -> Step:
    """Return a step over one library's vector kernels; `own` constants are the first kind's alone."""
    names = {f"{kinds[0]}_{name}" if own else name: bounds for name, bounds in KERNEL.items()}

    def chosen(call: Measured) -> bool:
        operator = call.operators[0]
        here = isinstance(operator, Vector) and operator.kind in kinds
        return here and call.device.conditions.library == scope and "excluded" not in call.topic

    return Step("vector", scope, names, chosen)


def section_of(attention: Attention) -> str:
    """Return the section that prices an operator (see `rapid_des.device.pricing`)."""
    if attention.shared_latent:
        return "mla_decode"
    if attention.value_dim not in {None, attention.head_dim}:
        return "mla_prefill"
    if attention.query_length > 1:
        return "attention"
    return "decode" if attention.heads > attention.kv_heads else "decode_mha"


STEPS: Mapping[str, Step] = {
    "vllm-decode": attention_step("decode", "default", DECODE, library="vllm", cache="bf16"),
    "vllm-decode-mha": attention_step("decode_mha", "default", DECODE, library="vllm", cache="bf16"),
    "vllm-prefill": attention_step("attention", "default", FLASH, library="vllm", cache="bf16"),
    "vllm-decode-fp8": attention_step("decode", "vllm/fp8", DECODE, library="vllm", cache="fp8"),
    "vllm-decode-mha-fp8": attention_step("decode_mha", "vllm/fp8", DECODE, library="vllm", cache="fp8"),
    "vllm-prefill-fp8": attention_step("attention", "vllm/fp8", FLASH, library="vllm", cache="fp8"),
    "trtllm-decode-mha": attention_step("decode_mha", "trtllm", DECODE, library="trtllm", cache="bf16"),
    "trtllm-decode-mha-fp8": attention_step(
        "decode_mha", "trtllm/fp8", DECODE, library="trtllm", cache="fp8"
    ),
    "trtllm-prefill": attention_step("attention", "trtllm", FLASH, library="trtllm", cache="bf16"),
    "trtllm-prefill-fp8": attention_step("attention", "trtllm/fp8", FLASH, library="trtllm", cache="fp8"),
    "mla-decode": attention_step("mla_decode", "default", DECODE, library="trtllm", cache="bf16"),
    "mla-decode-fp8": attention_step("mla_decode", "trtllm/fp8", DECODE, library="trtllm", cache="fp8"),
    "mla-prefill": attention_step("mla_prefill", "default", FLASH, library="trtllm", cache="bf16"),
    "mla-prefill-fp8": attention_step("mla_prefill", "trtllm/fp8", FLASH, library="trtllm", cache="fp8"),
    "vidur-norm": vector_step("vidur", ("rms_norm",), own=True),
    "vidur-activation": vector_step("vidur", ("swiglu",), own=True),
    "vidur-rope": vector_step("vidur", ("rope",), own=True),
    "torch-events": vector_step("torch-events", ("layer_norm", "softmax", "gelu", "residual_add", "scale")),
    "torch-eager": vector_step("torch-eager", ("cast", "embedding", "silu")),
}


def fit(step: Step, calls: Sequence[Measured], start: Constants) -> dict[str, float]:
    """Return the step's constants, fitted in log time with a loss that forgives outliers."""
    rows = calls[:: max(1, len(calls) // MOST_ROWS)]
    measured = np.log([call.measured_us for call in rows])
    device = rows[0].device
    known = with_constants(device, start).constants(step.section, step.scope.partition("/")[2])
    names = [name for name in step.bounds if name in known]
    low, high = (np.array([step.bounds[name][end] for name in names]) for end in (0, 1))
    first = np.clip([known[name] for name in names], low + 1e-6, high - 1e-6)

    def off(values: np.ndarray) -> np.ndarray:
        trial = changed(start, step, dict(zip(names, map(float, values), strict=True)))
        errors: np.ndarray = np.log(predict(rows, trial)) - measured
        return errors

    best = least_squares(off, first, bounds=(low, high), loss="soft_l1", f_scale=0.1, diff_step=0.02)
    return {name: float(f"{value:.3g}") for name, value in zip(names, best.x, strict=True)}


def changed(constants: Constants, step: Step, values: Mapping[str, float]) -> Constants:
    """Return the constants with one scope's values replaced."""
    section = dict(constants.get(step.section, {}))
    section[step.scope] = {**section.get(step.scope, {}), **values}
    return {**constants, step.section: section}


def with_constants(device: Device, constants: Constants) -> Device:
    """Return the device with other family constants."""
    return replace(device, family=msgspec.structs.replace(device.family, constants=constants))


def predict(calls: Iterable[Measured], constants: Constants) -> np.ndarray:
    """Return microseconds under other constants; one model a device, so that a shape is priced once."""
    models: dict[Device, OperatorModel] = {}

    def price(operator: Operator, device: Device) -> int:
        if device not in models:
            models[device] = operator_model(with_constants(device, constants))
        return models[device].estimate(operator).duration

    return np.array([sum(price(each, call.device) for each in call.operators) / 1e6 for call in calls])


def mean_error(calls: Sequence[Measured], constants: Constants) -> str:
    """Return the mean absolute error in percent, cases weighing the same."""
    if not calls:
        return "-"
    wrong = np.abs(predict(calls, constants) / np.array([call.measured_us for call in calls]) - 1)
    cases = {call.case_id for call in calls}
    names = np.array([call.case_id for call in calls])
    return f"{100 * np.mean([wrong[names == case].mean() for case in sorted(cases)]):.1f} %"


def main(folder: str, family: str, chosen: Sequence[str]) -> None:
    """Run the steps in order and print what each fitted."""
    data = DataFolder(Path(folder), split=True)
    calls = [*attention_topics.measured_calls(data), *vector_topics.measured_calls(data)]
    known = [call for call in calls if isinstance(call, Measured) and call.device.spec.family == family]
    constants = dict(known[0].device.family.constants)
    for name in chosen or STEPS:
        step = STEPS[name]
        rows = [call for call in known if step.chosen(call)]
        fitted = [call for call in rows if is_calibration(call.case_id)]
        if not fitted:
            continue
        values = fit(step, fitted, constants)
        constants = changed(constants, step, values)
        held = [call for call in rows if not is_calibration(call.case_id)]
        print(f"{name}: calibration {mean_error(fitted, constants)}, test {mean_error(held, constants)}")
        print(f"  {step.section}: {{{step.scope}: {values}}}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
