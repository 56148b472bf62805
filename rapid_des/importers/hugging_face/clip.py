"""CLIP (arXiv 2103.00020): a tower for images and one for texts, each with a projection to common features.

The towers are models of their own. The sum of products between the features of both, and the loss of all
pairs, are left out: at a batch of 32,768 they take a four-hundredth of the FLOPs of ViT-B/32 and its texts.
"""

from __future__ import annotations

from typing import Any

from rapid_des.importers.hugging_face.gpt import GELU
from rapid_des.importers.keys import Keys

Tree = dict[str, Any]

_WITH_QUICK = GELU | {"quick_gelu": "gelu"}
_TEXT = {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8}
_VISION = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
"""Defaults of transformers' CLIPTextConfig and CLIPVisionConfig."""
_OTHER_TASKS = "it is of a loss that is left out, or says again what the tower's section says"


def text_of_pair(keys: Keys) -> Tree:
    """Read the tower for texts of a config of both."""
    return text_tower(of_pair(keys, "text_config", "vision_config"))


def vision_of_pair(keys: Keys) -> Tree:
    """Read the tower for images of a config of both."""
    return vision_tower(of_pair(keys, "vision_config", "text_config"))


def of_pair(keys: Keys, section: str, other: str) -> Keys:
    """Return the keys of one section of a config of two towers, with the width of their features."""
    keys.ignore("it is the other tower", other)
    keys.ignore(_OTHER_TASKS, "logit_scale_init_value", "text_config_dict", "vision_config_dict")
    stated = keys.get(section, dict, {}) | {"architectures": []}
    if "projection_dim" in keys:
        stated["projection_dim"] = keys.count("projection_dim", 512, least=1)
    return keys.enter(stated, section)


def text_tower(keys: Keys) -> Tree:
    """Read the tower for texts: attention to earlier tokens, features of the last one."""
    return _tower(keys, _TEXT, causal=True) | {
        "vocabulary": keys.count("vocab_size", 49408, least=1),
        "max_positions": keys.count("max_position_embeddings", 77, least=1),
    }


def vision_tower(keys: Keys) -> Tree:
    """Read the tower for images: patches without a bias behind a token for the class, and a norm of them."""
    size, side = keys.count("patch_size", 32, least=1), keys.count("image_size", 224, least=1)
    channels = keys.count("num_channels", 3, least=1)
    patches = {"size": size, "image": side, "channels": channels, "bias": False, "norm": True}
    return _tower(keys, _VISION, causal=False) | {
        "vocabulary": 0,
        "max_positions": (side // size) ** 2 + 1,
        "patches": patches,
    }


def _tower(keys: Keys, usual: Tree, *, causal: bool) -> Tree:
    """Read what both towers have in common; `usual` holds defaults."""
    keys.notes.append("one tower: products of both towers' features are left out")
    if keys.value("hidden_act", "quick_gelu") == "quick_gelu":
        keys.notes.append("quick_gelu takes what gelu takes")
    heads = keys.count("num_attention_heads", usual["num_attention_heads"], least=1)
    return {
        "hidden": keys.count("hidden_size", usual["hidden_size"], least=1),
        "layers": keys.count("num_hidden_layers", 12, least=1),
        "attention": {
            "kind": "attention",
            "heads": heads,
            "qkv_bias": True,
            "output_bias": True,
            "causal": causal,
        },
        "feed_forward": {
            "kind": "dense",
            "activation": keys.choice("hidden_act", _WITH_QUICK, "quick_gelu"),
            "hidden": keys.count("intermediate_size", usual["intermediate_size"], least=1),
            "bias": True,
        },
        "norm": "layer_norm",
        "position": "learned",
        "tied_embeddings": False,
        "features": _features(keys),
    }


def _features(keys: Keys) -> int:
    """Return the width of a tower's projection; 0 for those of which `architectures` names the tower alone.

    `CLIPTextModel`, as Stable Diffusion has it, gives all positions; `CLIPTextModelWithProjection` features.
    """
    names = keys.get("architectures", list, [])
    if any(name in ("CLIPTextModel", "CLIPVisionModel") for name in names):
        keys.ignore("the architecture is the tower without its projection", "projection_dim")
        return 0
    return keys.count("projection_dim", 512, least=1)
