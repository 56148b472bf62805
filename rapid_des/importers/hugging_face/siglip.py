"""SigLIP (arXiv 2303.15343): a tower for images and one for texts; attention pools the positions of an image.

The towers are models of their own. The products of the features of both, and the loss of all pairs with its
two parameters, are left out.
"""

from __future__ import annotations

from rapid_des.importers.hugging_face.clip import of_pair
from rapid_des.importers.hugging_face.gpt import GELU
from rapid_des.importers.keys import Keys, Tree

_USUAL = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
"""Defaults of transformers' SiglipTextConfig and SiglipVisionConfig."""


def text_of_pair(keys: Keys) -> Tree:
    """Read the tower for texts of a config of both."""
    return text_tower(of_pair(keys, "text_config", "vision_config"))


def vision_of_pair(keys: Keys) -> Tree:
    """Read the tower for images of a config of both."""
    return vision_tower(of_pair(keys, "vision_config", "text_config"))


def text_tower(keys: Keys) -> Tree:
    """Read the tower for texts: attention to both sides, features of the last token."""
    hidden = keys.count("hidden_size", 768, least=1)
    return _tower(keys) | {
        "vocabulary": keys.count("vocab_size", 32000, least=1),
        "max_positions": keys.count("max_position_embeddings", 64, least=1),
        "features": keys.count("projection_size", hidden, least=1),
        "head_bias": True,
    }


def vision_tower(keys: Keys, *, pooled: bool = True) -> Tree:
    """Read the tower for images: patches without a token for the class, and attention that pools them."""
    size, side = keys.count("patch_size", 16, least=1), keys.count("image_size", 224, least=1)
    channels = keys.count("num_channels", 3, least=1)
    pools = keys.flag("vision_use_head", default=True) and pooled
    return _tower(keys) | {
        "vocabulary": 0,
        "max_positions": (side // size) ** 2,
        "patches": {"size": size, "image": side // size * size, "channels": channels, "extra": 0},
        "pooling": "attention" if pools else "first",
    }


def _tower(keys: Keys) -> Tree:
    """Read what both towers have in common."""
    return {
        "hidden": keys.count("hidden_size", _USUAL["hidden_size"], least=1),
        "layers": keys.count("num_hidden_layers", 12, least=1),
        "attention": {
            "kind": "attention",
            "heads": keys.count("num_attention_heads", _USUAL["num_attention_heads"], least=1),
            "qkv_bias": True,
            "output_bias": True,
            "causal": False,
        },
        "feed_forward": {
            "kind": "dense",
            "activation": keys.choice("hidden_act", GELU, "gelu_pytorch_tanh"),
            "hidden": keys.count("intermediate_size", _USUAL["intermediate_size"], least=1),
            "bias": True,
        },
        "norm": "layer_norm",
        "position": "learned",
        "tied_embeddings": False,
    }
