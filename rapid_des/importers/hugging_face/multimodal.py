"""Multimodal models, of which only the text model inside is simulated, and Llama 4, published as such."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rapid_des.errors import ConfigError
from rapid_des.importers.hugging_face.hybrid import qwen3_5, qwen3_next
from rapid_des.importers.hugging_face.ignored import SCALES
from rapid_des.importers.hugging_face.llama import (
    attention_of,
    deepseek_v3,
    gemma3,
    llama,
    mistral,
    qwen3,
    qwen3_moe,
    with_layers,
)
from rapid_des.importers.keys import Keys, Tree

OF_IMAGES = (
    "boi_token_index", "eoi_token_index", "image_token_index", "mm_tokens_per_image",
    "multimodal_projector_bias", "projector_hidden_act", "spatial_merge_size", "vision_feature_layer",
    "image_token_id", "video_token_id", "vision_start_token_id",
    "vision_end_token_id", "language_model_only", "media_placeholder_token_id", "use_unified_vision_chunk",
    "video_placeholder", "ignore_index",
)  # fmt: skip
"""Keys beside `text_config` that do not concern the text model."""
GEMMA3_TEXT = dict(
    vocab_size=262_208, hidden_size=2304, intermediate_size=9216, num_hidden_layers=26, num_attention_heads=8,
    num_key_value_heads=4, head_dim=256, max_position_embeddings=131_072,
)  # fmt: skip
"""Defaults of transformers' Gemma3TextConfig."""


def _text_model(read: Callable[[Keys], Tree], usual: Mapping[str, Any]) -> Callable[[Keys], Tree]:
    """Return an importer that reads `text_config` with `read`; `usual` holds defaults."""

    def whole(keys: Keys) -> Tree:
        keys.ignore("the tower for images and its projector are left out", "vision_config", *OF_IMAGES)
        shared, stated = {}, keys.get("text_config", dict)
        if "tie_word_embeddings" in stated:
            keys.ignore("text_config says it", "tie_word_embeddings")
        elif "tie_word_embeddings" in keys:
            shared["tie_word_embeddings"] = keys.value("tie_word_embeddings")
        return read(keys.enter({**usual, **shared, **stated}, "text_config"))

    return whole


def _kimi(keys: Keys) -> Tree:
    """Read the text model of Kimi K2.5: DeepSeek-V3's, with what configs of any model may state."""
    for key in ("add_cross_attention", "is_encoder_decoder", "tie_encoder_decoder"):
        keys.choice(key, {False: None}, default=False)
    if keys.get("pruned_heads", dict, {}):
        raise keys.error("pruned heads are not simulated", "pruned_heads")
    return deepseek_v3(keys)


def llama4(keys: Keys) -> Tree:
    """Read Llama 4: experts in some layers, one shared; attention in chunks but where nothing is rotated."""
    keys.ignore(SCALES, "attn_scale", "attn_temperature_tuning", "floor_scale", "for_llm_compressor")
    keys.ignore("norms of queries and keys have no weights, and no kernel of their own here", "use_qk_norm")
    model, experts = llama(keys), keys.count("num_local_experts", 16)
    count, inner = model["layers"], keys.count("intermediate_size")
    chunk = keys.count("attention_chunk_size", 8192)
    if "moe_layers" in keys:
        keys.ignore("moe_layers says it", "interleave_moe_layer_step")
    step = keys.count("interleave_moe_layer_step", 1, least=1)
    whole = attention_of(keys) | {"qkv_bias": model["attention"]["qkv_bias"], "rotary": 0.0}
    rotating = with_layers(
        model | {"attention": whole},
        "attention",
        model["attention"] | {"chunk": chunk},
        _rotated(keys, count),
    )
    sparse = {
        "kind": "experts",
        "experts": experts,
        "topk": keys.count("num_experts_per_tok", 1),
        "hidden": inner,
        "activation": "swiglu",
        "shared_hidden": inner,
    }
    rotating["feed_forward"] = rotating["feed_forward"] | {
        "hidden": keys.count("intermediate_size_mlp", 16384)
    }
    layers = keys.layers("moe_layers", count, list(range(step - 1, count, step)))
    if len(set(layers)) == count:
        keys.overrule("every layer has experts", "intermediate_size_mlp")
    return with_layers(rotating, "feed_forward", sparse, layers)


def _rotated(keys: Keys, count: int) -> list[int]:
    """Return the layers that rotate, which `no_rope_layers` marks with 1: three of four if it is empty."""
    keys.ignore("no_rope_layers says which layers see all positions", "layer_types")
    every = keys.count("no_rope_layer_interval", 4, least=1)
    if keys.get("no_rope_layers", list, []):
        keys.overrule("no_rope_layers says it", "no_rope_layer_interval")
    flags = keys.get("no_rope_layers", list, []) or [(layer + 1) % every for layer in range(count)]
    if len(flags) != count:
        raise ConfigError(f"must be a list of {count} layers", file=keys.file, key="no_rope_layers")
    return [layer for layer, flag in enumerate(flags) if flag]


gemma3_with_images = _text_model(gemma3, GEMMA3_TEXT)
llama4_with_images = _text_model(llama4, {})
mistral3 = _text_model(mistral, {})
kimi_k25 = _text_model(_kimi, {})
qwen3_with_images = _text_model(qwen3, {})
qwen3_moe_with_images = _text_model(qwen3_moe, {})
qwen3_5_with_images = _text_model(qwen3_5, {})
qwen3_5_moe_with_images = _text_model(qwen3_next, {})
