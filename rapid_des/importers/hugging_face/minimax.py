"""MiniMax: experts in every layer; Text-01 and M1 have lightning attention in most layers, M2 in none."""

from __future__ import annotations

from rapid_des.importers.hugging_face.llama import everywhere, llama, with_layers
from rapid_des.importers.keys import Keys, Tree

_LINEAR = {0: True, 1: False, "linear_attention": True, "full_attention": False}
"""What marks of layers mean: MiniMax's own files have numbers, those of transformers have words."""
_SCALES = tuple(
    name.format(which)
    for which in ("alpha", "beta")
    for half in ("full_attention", "linear_attention", "mlp", "full_attn", "linear_attn")
    for name in (f"layernorm_{half}_{{}}", f"{half}_{{}}_factor")
)


def minimax(keys: Keys) -> Tree:
    """Read MiniMax-Text-01 and M1; without marks every second layer has lightning attention."""
    count = keys.count("num_hidden_layers", least=1)
    usual = ["linear_attention" if layer % 2 else "full_attention" for layer in range(count)]
    return _with_lightning(keys, _model(keys, "none"), usual)


def minimax_m2(keys: Keys) -> Tree:
    """Read MiniMax-M2: norms of all queries and keys, and no lightning attention unless marks say so."""
    keys.choice("qk_norm_type", {"per_layer": None}, default="per_layer")
    keys.choice("mtp_transformer_layers", {1: None}, default=1)
    model = _model(keys, "whole" if keys.flag("use_qk_norm", default=True) else "none")
    if keys.flag("use_mtp", default=False):
        model["predictions"] = keys.count("num_mtp_modules", 0)
        keys.notes.append("num_mtp_modules: modules that predict further tokens are not among the parameters")
    keys.ignore("use_mtp is false", "num_mtp_modules")
    keys.ignore("every layer has experts", "mlp_intermediate_size", "mlp_bias")
    keys.ignore("it says which experts tokens choose, not how many", "use_grouped_topk")
    model["feed_forward"]["router_bias"] = keys.flag("use_routing_bias", default=False)
    return _with_lightning(keys, model, ["full_attention"] * model["layers"])


def _model(keys: Keys, qk_norm: str) -> Tree:
    """Return what all have: part of each head rotated, experts in every layer, none of them shared."""
    shared = keys.value("shared_intermediate_size", 0)
    if shared not in (0, [0]):
        raise keys.error(
            f"{shared!r}: shared experts of MiniMax are not simulated", "shared_intermediate_size"
        )
    keys.ignore("there is no shared expert", "shared_moe_mode")
    keys.ignore("it bounds or scales what layers add", *_SCALES)
    keys.ignore("the residual is as large before the norm as after it", "postnorm")
    model = llama(keys, qk_norm=qk_norm)
    width = _width(model)
    model["attention"]["rotary"] = keys.count("rotary_dim", width, most=width) / width
    return model | {
        "feed_forward": everywhere(keys, keys.count("num_local_experts"), model["feed_forward"]["hidden"])
    }


def _width(model: Tree) -> int:
    width: int = model["attention"].get("head_dim", model["hidden"] // model["attention"]["heads"])
    return width


def _with_lightning(keys: Keys, model: Tree, usual: list[str]) -> Tree:
    """Give lightning attention to the layers whose mark says so."""
    stated = "attn_type_list" if "attn_type_list" in keys else "layer_types"
    marks = keys.names(stated, model["layers"]) or usual
    lightning = {
        "kind": "lightning_attention",
        "heads": model["attention"]["heads"],
        "head_dim": _width(model),
        "chunk": keys.count("block_size", 256, least=1),
    }
    linear = [Keys({stated: mark}, keys.file).choice(stated, _LINEAR) for mark in marks]
    return with_layers(model, "attention", lightning, [layer for layer, flag in enumerate(linear) if flag])
