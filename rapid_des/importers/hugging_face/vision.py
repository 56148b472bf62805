"""Models of images: ViT, and the backbones of DINOv2 and DINOv3."""

from __future__ import annotations

from typing import Any

from rapid_des.importers.hugging_face.gpt import GELU, encoder_layers
from rapid_des.importers.hugging_face.ignored import DROPOUT
from rapid_des.importers.keys import Keys

Tree = dict[str, Any]
_SWIGLU_MULTIPLE = 8


def vit(keys: Keys) -> Tree:
    """Read ViT: patches behind a token for the class, attention to both sides, a head of classes."""
    hidden = keys.count("hidden_size")
    patches, count = _patches(keys, image=224, patch=16)
    keys.ignore("it is of masked training, which is not simulated", "encoder_stride")
    keys.ignore("the pooler is not part of a classifier", "pooler_act", "pooler_output_size")
    names = keys.get("id2label", dict, {})
    keys.overrule("id2label says it", *(("num_labels",) if names else ()))
    classes = len(names) or keys.count("num_labels", 2, least=1)
    bias = keys.flag("qkv_bias", default=True)
    attention = {"heads": keys.count("num_attention_heads"), "qkv_bias": bias, "output_bias": True}
    return {
        "hidden": hidden,
        "attention": attention | {"causal": False},
        **encoder_layers(keys),
        "vocabulary": classes,
        "max_positions": count + 1,
        "tied_embeddings": False,
        "head_bias": True,
        "patches": patches,
    }


def _patches(keys: Keys, *, image: int, patch: int) -> tuple[Tree, int]:
    """Return the section of patches, and how many an image has."""
    size, side = keys.count("patch_size", patch, least=1), keys.count("image_size", image, least=1)
    channels = keys.count("num_channels", 3, least=1)
    return {"size": size, "image": side, "channels": channels}, (side // size) ** 2


def dinov2(keys: Keys) -> Tree:
    """Read DINOv2, with registers or without: a backbone of scaled layers that makes features."""
    hidden, ratio = keys.count("hidden_size", 768), keys.count("mlp_ratio", 4)
    if keys.flag("use_swiglu_ffn", default=False):
        keys.ignore("use_swiglu_ffn says it", "hidden_act")
        inner = -(-(hidden * ratio * 2 // 3) // _SWIGLU_MULTIPLE) * _SWIGLU_MULTIPLE
        feed_forward = {"activation": "swiglu", "hidden": inner, "bias": True}
    else:
        activation = keys.choice("hidden_act", GELU, "gelu")
        feed_forward = {"activation": activation, "hidden": hidden * ratio, "bias": True}
    bias, mask = keys.flag("qkv_bias", default=True), keys.flag("use_mask_token", default=True)
    attention = {"heads": keys.count("num_attention_heads", 12), "qkv_bias": bias, "output_bias": True}
    return _backbone(keys, hidden, mask=mask, position="learned", sides=(518, 14)) | {
        "layers": keys.count("num_hidden_layers", 12, least=1),
        "attention": attention | {"causal": False},
        "feed_forward": feed_forward,
    }


def dinov3(keys: Keys) -> Tree:
    """Read DINOv3: as DINOv2, with rotated positions, and biases that configs choose one by one."""
    hidden, bias = keys.count("hidden_size", 384), keys.flag("query_bias", default=True)
    keys.choice("value_bias", {bias: None}, default=True)
    keys.ignore("it changes by which angles positions rotate, no shape", *_ANGLES)
    gated = keys.flag("use_gated_mlp", default=False)
    activation = keys.choice("hidden_act", {"silu": "swiglu"} if gated else GELU, "silu" if gated else "gelu")
    inner, mlp_bias = keys.count("intermediate_size", 4 * hidden), keys.flag("mlp_bias", default=True)
    attention = {"heads": keys.count("num_attention_heads", 6), "qkv_bias": bias, "causal": False}
    attention |= {"key_bias": keys.flag("key_bias", default=False) or not bias}
    attention |= {"output_bias": keys.flag("proj_bias", default=True)}
    return _backbone(keys, hidden, mask=True, position="rope", sides=(224, 16)) | {
        "layers": keys.count("num_hidden_layers", 12, least=1),
        "attention": attention,
        "feed_forward": {"activation": activation, "hidden": inner, "bias": mlp_bias},
    }


_ANGLES = ("pos_embed_jitter", "pos_embed_rescale", "pos_embed_shift")


def _backbone(keys: Keys, hidden: int, *, mask: bool, position: str, sides: tuple[int, int]) -> Tree:
    """Read what DINO's backbones have in common."""
    patches, count = _patches(keys, image=sides[0], patch=sides[1])
    extra = 1 + keys.count("num_register_tokens", 0)
    keys.ignore(DROPOUT, "drop_path_rate")
    keys.ignore("gains are among the parameters, whatever they begin with", "layerscale_value")
    keys.ignore(
        "it says which features are handed out", "apply_layernorm", "out_features", "out_indices",
        "reshape_hidden_states", "return_class_token", "stage_names",
    )  # fmt: skip
    keys.notes.append(
        "the backbone, without a head: the heads, teacher and losses of its training are left out"
    )
    return {
        "hidden": hidden,
        "norm": "layer_norm",
        "position": position,
        "vocabulary": 0,
        "max_positions": count + extra,
        "tied_embeddings": False,
        "layer_scale": True,
        "patches": patches | {"extra": extra, "mask": mask},
    }
