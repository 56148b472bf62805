"""The number formats of a torchtitan configuration: what its converters make of a model's matrices."""

from __future__ import annotations

from rapid_des.importers.imported import sparse
from rapid_des.importers.keys import Keys, Tree

DTYPES = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}
CONVERTERS = {
    "float8": "current", "quantize.linear.float8": "current", "mx": "mxfp8", "quantize.linear.mx": "mxfp8",
}  # fmt: skip
"""The scaling recipe of each converter of a model's matrices."""
WIDE = ("output", "router.gate")


def of(keys: Keys, name: str) -> Keys:
    """Return a section, which may be left out."""
    return keys.section(name, optional=True)


def precision_of(keys: Keys) -> Tree:
    """Return the keys of a job's precision."""
    training = of(keys, "training")
    stored = training.choice("dtype", DTYPES, "float32")
    compute = training.choice("mixed_precision_param", DTYPES, "bfloat16")
    recipe = _recipe(keys)
    linear = of(of(keys, "quantize"), "linear")
    travels = False
    for section in (of(keys, "float8"), of(linear, "float8")):
        if recipe == "current":
            _check_float8(section)
            travels |= section.flag("enable_fsdp_float8_all_gather", default=False)
        section.ignore("no converter is float8", *section.unread())
    for section in (of(keys, "mx"), of(linear, "mx")):
        if recipe == "mxfp8":
            section.choice("recipe_name", dict.fromkeys(("mxfp8", "mxfp8_cublas")), "mxfp8")
            section.overrule("kernels of MXFP8 are cuBLAS's", "recipe_name", "mxfp8_dim1_cast_kernel_choice")
            _check_filter(section)
        section.ignore("no converter is mx", *section.unread())
    of(keys, "quantize").ignore("experts multiply in the format of the other matrices", "grouped_mm")
    return sparse(
        activations=compute,
        gemm=recipe and "fp8",
        recipe=recipe,
        parameter_gather="fp8" if travels else None,
        gradients=stored,
        gradient_reduce=training.choice("mixed_precision_reduce", DTYPES, "float32"),
        optimizer=stored,
    ) | {"master_weights": None if stored == compute else stored}


def _recipe(keys: Keys) -> str | None:
    """Return the scaling recipe of a converted model's matrices; None: they are not converted."""
    model = of(keys, "model")
    names = model.get("converters", list, [])
    plain = [str(name) for name in names if not str(name).startswith("quantize.grouped_mm.")]
    unknown = [name for name in plain if name not in CONVERTERS]
    recipes = {CONVERTERS[name] for name in plain if name in CONVERTERS}
    if unknown or len(recipes) > 1 or (names and not recipes):
        allowed = f"one of {', '.join(CONVERTERS)}, and quantize.grouped_mm beside it"
        raise model.error(f"{names!r} is not understood; allowed: {allowed}", "converters")
    return next(iter(recipes), None)


def _check_float8(section: Keys) -> None:
    section.choice("recipe_name", dict.fromkeys((None, "tensorwise", "rowwise")))
    section.choice("emulate", {False: None}, default=False)
    section.overrule("scales of tensors and of rows are found by reading them once more", "recipe_name")
    reason = "scales are found as weights are cast, before they are gathered"
    section.ignore(reason, "precompute_float8_dynamic_scale_for_fsdp")
    _check_filter(section)


def _check_filter(section: Keys) -> None:
    """Refuse matrices that stay wide, but for those that do so here in any case."""
    names = section.get("filter_fqns", list, [])
    strange = [name for name in names if name not in WIDE]
    if strange:
        raise section.error(f"{strange[0]!r} stays wide; allowed: {', '.join(WIDE)}", "filter_fqns")
    section.overrule("the head and the router stay wide in any case", "filter_fqns")
