"""Multimodal models: the text model alone, or with its encoder of images; Llama 4, published as such."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rapid_des.errors import ConfigError
from rapid_des.importers.hugging_face import clip, siglip
from rapid_des.importers.hugging_face.hybrid import qwen3_5, qwen3_next
from rapid_des.importers.hugging_face.ignored import SCALES
from rapid_des.importers.hugging_face.llama import (
    attention_of,
    deepseek_v3,
    gemma,
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
    "video_placeholder", "ignore_index", "image_seq_length", "projection_dim",
    "vision_feature_select_strategy", "hidden_size",
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


def _both(
    read: Callable[[Keys], Tree], usual: Mapping[str, Any], encoder: Callable[[Keys, Tree], Tree]
) -> Callable[[Keys], Tree]:
    """Return an importer of the text model with its encoder of images."""
    text = _text_model(read, usual)

    def whole(keys: Keys) -> Tree:
        keys.notes.append("a job states `images`, how many a sequence has; each takes its tokens of it")
        tower = encoder(keys, keys.get("text_config", dict))
        return text(keys) | {"encoder": tower}

    return whole


def _encoder_of_gemma3(keys: Keys, text: Tree) -> Tree:
    """Read Gemma 3's: SigLIP, whose positions are averaged to `mm_tokens_per_image`, a norm and a matrix."""
    tower = siglip.vision_tower(keys.section("vision_config"), pooled=False)
    tokens = keys.count("mm_tokens_per_image", 256, least=1)
    width = text.get("hidden_size", GEMMA3_TEXT["hidden_size"])
    merge = tower["max_positions"] // tokens
    return {
        "model": tower,
        "merge": merge,
        "projector": [width],
        "projector_bias": False,
        "projector_norm": True,
    }


def _encoder_of_llava(keys: Keys, text: Tree) -> Tree:
    """Read LLaVA's: CLIP without its projection, and two matrices."""
    keys.choice("vision_feature_select_strategy", {"default": None}, "default")
    keys.choice("projector_hidden_act", {"gelu": None}, "gelu")
    section = keys.section("vision_config")
    section.ignore("the encoder ends before its projection", "projection_dim", "vocab_size")
    tower = clip.vision_tower(section) | {"features": None}
    width = text.get("hidden_size", 4096)
    bias = keys.flag("multimodal_projector_bias", default=True)
    return {"model": tower, "projector": [width, width], "projector_bias": bias}


def _encoder_of_paligemma(keys: Keys, text: Tree) -> Tree:
    """Read PaliGemma's: SigLIP, and a matrix."""
    section = keys.section("vision_config")
    section.ignore("the matrix is as wide as the text model", "projection_dim", "num_image_tokens")
    section.ignore("one matrix has nothing behind it", "projector_hidden_act")
    tower = siglip.vision_tower(section, pooled=False)
    return {"model": tower, "projector": [text.get("hidden_size", 2048)]}


def _gemma_of_images(keys: Keys) -> Tree:
    keys.ignore("an image has as many tokens as patches", "num_image_tokens")
    return gemma(keys)


GEMMA_TEXT = dict(
    vocab_size=256_000, hidden_size=2048, intermediate_size=16384, num_hidden_layers=18,
    num_attention_heads=8, num_key_value_heads=1, head_dim=256, max_position_embeddings=8192,
    hidden_activation="gelu_pytorch_tanh",
)  # fmt: skip
"""Defaults of transformers' GemmaConfig, with PaliGemma's one head of keys."""
LLAMA_TEXT = dict(
    vocab_size=32_000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32,
    num_attention_heads=32, max_position_embeddings=2048,
)  # fmt: skip
"""Defaults of transformers' LlamaConfig."""
gemma3_with_images = _text_model(gemma3, GEMMA3_TEXT)
gemma3_both = _both(gemma3, GEMMA3_TEXT, _encoder_of_gemma3)
llava = _text_model(llama, LLAMA_TEXT)
llava_both = _both(llama, LLAMA_TEXT, _encoder_of_llava)
paligemma = _text_model(_gemma_of_images, GEMMA_TEXT)
paligemma_both = _both(_gemma_of_images, GEMMA_TEXT, _encoder_of_paligemma)
llama4_with_images = _text_model(llama4, {})
mistral3 = _text_model(mistral, {})
kimi_k25 = _text_model(_kimi, {})
qwen3_with_images = _text_model(qwen3, {})
qwen3_moe_with_images = _text_model(qwen3_moe, {})
qwen3_5_with_images = _text_model(qwen3_5, {})
qwen3_5_moe_with_images = _text_model(qwen3_next, {})
