"""GPT-2 and those that have layer norms and a feed-forward without a gate: what each reads."""

from __future__ import annotations

from typing import Any

from rapid_des.importers.hugging_face.ignored import DROPOUT, SCALES
from rapid_des.importers.hugging_face.llama import attention_of, rotated_share
from rapid_des.importers.keys import Keys

Tree = dict[str, Any]

GELU = {"gelu": "gelu", "gelu_new": "gelu", "gelu_fast": "gelu", "gelu_pytorch_tanh": "gelu"}


def gpt2(keys: Keys) -> Tree:
    """Read GPT-2: learned positions, biases everywhere."""
    keys.ignore("n_positions says it", "n_ctx")
    keys.ignore("it is how the library runs the model, which a job says", "output_past")
    hidden = keys.count("n_embd")
    inner = keys.count("n_inner", 4 * hidden)
    activation = keys.choice("activation_function", GELU, "gelu_new")
    return {
        "hidden": hidden,
        "layers": keys.count("n_layer", least=1),
        "attention": {"heads": keys.count("n_head"), "qkv_bias": True, "output_bias": True},
        "feed_forward": {"activation": activation, "hidden": inner, "bias": True},
        "norm": "layer_norm",
        "position": "learned",
        "vocabulary": keys.count("vocab_size"),
        "max_positions": keys.count("n_positions"),
        "tied_embeddings": keys.flag("tie_word_embeddings", default=True),
    }


def opt(keys: Keys) -> Tree:
    """Read OPT: learned positions, two rows of which stand for padding."""
    hidden = keys.count("hidden_size")
    keys.choice("do_layer_norm_before", {True: None}, default=True)
    keys.choice("word_embed_proj_dim", {hidden: None}, default=hidden)
    keys.choice("layer_norm_elementwise_affine", {True: None}, default=True)
    keys.choice("_remove_final_layer_norm", {False: None}, default=False)
    bias = keys.flag("enable_bias", default=True)
    activation = keys.choice("activation_function", GELU | {"relu": "relu"}, "relu")
    return {
        "hidden": hidden,
        "layers": keys.count("num_hidden_layers", least=1),
        "attention": {"heads": keys.count("num_attention_heads"), "qkv_bias": bias, "output_bias": bias},
        "feed_forward": {"activation": activation, "hidden": keys.count("ffn_dim"), "bias": bias},
        "norm": "layer_norm",
        "position": "learned",
        "vocabulary": keys.count("vocab_size"),
        "max_positions": keys.count("max_position_embeddings") + 2,
        "tied_embeddings": keys.flag("tie_word_embeddings", default=True),
    }


def bert(keys: Keys) -> Tree:
    """Read BERT and RoBERTa: attention to both sides; the rows of token types stand with those of positions.

    Norms behind each sum are as many, and of the same size, as norms before each half.
    """
    keys.choice("position_embedding_type", {"absolute": None}, "absolute")
    keys.notes.append("norms stand before each half instead of behind each sum, which costs the same")
    keys.notes.append("the product and the norm before the head are not among the parameters")
    keys.ignore("it is of the tasks behind the encoder", "classifier_dropout", "gradient_checkpointing")
    return {
        "hidden": keys.count("hidden_size"),
        "attention": {
            "heads": keys.count("num_attention_heads"),
            "qkv_bias": True,
            "output_bias": True,
            "causal": False,
        },
        **encoder_layers(keys),
        "vocabulary": keys.count("vocab_size", 30522),
        "max_positions": keys.count("max_position_embeddings", 512) + keys.count("type_vocab_size", 2),
        "tied_embeddings": True,
        "head_bias": True,
    }


def encoder_layers(keys: Keys) -> Tree:
    """Read what the layers of encoders have in common."""
    return {
        "layers": keys.count("num_hidden_layers", least=1),
        "feed_forward": {
            "activation": keys.choice("hidden_act", GELU, "gelu"),
            "hidden": keys.count("intermediate_size"),
            "bias": True,
        },
        "norm": "layer_norm",
        "position": "learned",
    }


def gpt_neox(keys: Keys) -> Tree:
    """Read GPT-NeoX and Pythia: both halves of a layer read the same stream."""
    bias, parallel = (
        keys.flag("attention_bias", default=True),
        keys.flag("use_parallel_residual", default=True),
    )
    attention = {"heads": keys.count("num_attention_heads"), "qkv_bias": bias, "output_bias": bias}
    share = rotated_share(keys, "rotary_pct", 0.25)
    return {
        "hidden": keys.count("hidden_size"),
        "layers": keys.count("num_hidden_layers", least=1),
        "attention": attention | {"rotary": share},
        "feed_forward": {
            "activation": keys.choice("hidden_act", GELU, "gelu"),
            "hidden": keys.count("intermediate_size"),
            "bias": True,
        },
        "norm": "layer_norm",
        "block": "parallel" if parallel else "sequential",
        "position": "rope",
        "vocabulary": keys.count("vocab_size"),
        "max_positions": keys.count("max_position_embeddings"),
        "tied_embeddings": keys.flag("tie_word_embeddings", default=False),
    }


def phi(keys: Keys) -> Tree:
    """Read Phi 1.5 and 2: one norm for both halves, biases everywhere, in the head too."""
    keys.choice("qk_layernorm", {False: None}, default=False)
    attention = attention_of(keys) | {"qkv_bias": True, "output_bias": True}
    attention["rotary"] = rotated_share(keys, "partial_rotary_factor", 0.5)
    return {
        "hidden": keys.count("hidden_size"),
        "layers": keys.count("num_hidden_layers", least=1),
        "attention": attention,
        "feed_forward": {
            "activation": keys.choice("hidden_act", GELU, "gelu_new"),
            "hidden": keys.count("intermediate_size"),
            "bias": True,
        },
        "norm": "layer_norm",
        "block": "parallel_one_norm",
        "position": "rope",
        "vocabulary": keys.count("vocab_size"),
        "max_positions": keys.count("max_position_embeddings"),
        "tied_embeddings": keys.flag("tie_word_embeddings", default=False),
        "head_bias": True,
    }


def starcoder2(keys: Keys) -> Tree:
    """Read StarCoder2: grouped keys and values, biases everywhere, a window in every layer."""
    keys.ignore("hidden_act and use_bias say it", "activation_function")
    keys.choice("mlp_type", {"default": None}, "default")
    keys.ignore(DROPOUT, "residual_dropout", "embedding_dropout")
    keys.ignore(SCALES, "norm_epsilon")
    keys.choice("norm_type", {"layer_norm": None}, "layer_norm")
    bias, window = keys.flag("use_bias", default=True), int(keys.nullable("sliding_window"))
    attention = attention_of(keys) | {"qkv_bias": bias, "output_bias": bias}
    return {
        "hidden": keys.count("hidden_size"),
        "layers": keys.count("num_hidden_layers", least=1),
        "attention": attention | ({"window": window} if window else {}),
        "feed_forward": {
            "activation": keys.choice("hidden_act", GELU, "gelu_pytorch_tanh"),
            "hidden": keys.count("intermediate_size"),
            "bias": bias,
        },
        "norm": "layer_norm",
        "position": "rope",
        "vocabulary": keys.count("vocab_size"),
        "max_positions": keys.count("max_position_embeddings"),
        "tied_embeddings": keys.flag("tie_word_embeddings", default=True),
    }


def falcon(keys: Keys) -> Tree:
    """Read Falcon: one or few key and value heads; both halves read the same stream, by one norm or two."""
    heads, many = keys.count("num_attention_heads"), keys.flag("new_decoder_architecture", default=False)
    if many:
        reason = "new_decoder_architecture is true, which has num_kv_heads and both halves side by side"
        keys.ignore(reason, "multi_query", "parallel_attn", "n_head_kv")
        kv_heads = keys.count("num_kv_heads", heads)
    else:
        keys.ignore("multi_query says it, new_decoder_architecture is false", "num_kv_heads", "n_head_kv")
        kv_heads = 1 if keys.flag("multi_query", default=True) else heads
    block = "sequential"
    if many or keys.flag("parallel_attn", default=True):
        norms = keys.choice("num_ln_in_parallel_attn", {1: 1, 2: 2}, 2 if many else 1)
        block = "parallel" if norms == 2 else "parallel_one_norm"
    else:
        keys.ignore("parallel_attn is false", "num_ln_in_parallel_attn")
    keys.choice("apply_residual_connection_post_layernorm", {False: None}, default=False)
    if "ffn_hidden_size" in keys:
        keys.ignore("ffn_hidden_size says it", "ff_factor")
    hidden, bias = keys.count("hidden_size"), keys.flag("bias", default=False)
    return {
        "hidden": hidden,
        "layers": keys.count("num_hidden_layers", least=1),
        "attention": {"heads": heads, "kv_heads": kv_heads, "qkv_bias": bias, "output_bias": bias},
        "feed_forward": {
            "activation": keys.choice("activation", GELU, "gelu"),
            "hidden": keys.count("ffn_hidden_size", keys.count("ff_factor", 4) * hidden),
            "bias": bias,
        },
        "norm": "layer_norm",
        "block": block,
        "position": "none" if keys.flag("alibi", default=False) else "rope",
        "vocabulary": keys.count("vocab_size"),
        "max_positions": keys.count("max_position_embeddings", 2048),
        "tied_embeddings": keys.flag("tie_word_embeddings", default=True),
    }
