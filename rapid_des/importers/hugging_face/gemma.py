"""Gemma, Gemma 2 and Gemma 3's text model: what each reads."""

from __future__ import annotations

from rapid_des.importers.hugging_face.llama import attention_of, windowed
from rapid_des.importers.keys import Keys, Tree


def gemma(keys: Keys, *, norms: str = "before") -> Tree:
    """Read Gemma: a GELU gate, heads wider than the stream, one table."""
    keys.ignore("hidden_activation says it, which Gemma's code reads", "hidden_act")
    bias = keys.flag("attention_bias", default=False)
    attention = attention_of(keys) | {"qkv_bias": bias, "output_bias": bias}
    gate = {"gelu": "geglu", "gelu_pytorch_tanh": "geglu"}
    activation = keys.choice("hidden_activation", gate | {None: "geglu"}, "gelu_pytorch_tanh")
    return {
        "hidden": keys.count("hidden_size"),
        "layers": keys.count("num_hidden_layers", least=1),
        "attention": attention,
        "feed_forward": {"activation": activation, "hidden": keys.count("intermediate_size")},
        "norm": "rms_norm",
        "norms": norms,
        "position": "rope",
        "vocabulary": keys.count("vocab_size"),
        "max_positions": keys.count("max_position_embeddings"),
        "tied_embeddings": keys.flag("tie_word_embeddings", default=True),
    }


def gemma2(keys: Keys) -> Tree:
    """Read Gemma 2: four norms a layer, scores and logits capped, every other layer a window."""
    model = gemma(keys, norms="both")
    keys.ignore("sliding_window says it", "sliding_window_size")
    _cap(keys, model, 50, 30)
    return windowed(keys, model, lambda layer: layer % 2 == 0, default=4096)


def _cap(keys: Keys, model: Tree, scores: float, logits: float) -> None:
    """Cap scores and logits, if the file does so or says nothing and its code does."""
    names = ("attn_logit_softcapping", "final_logit_softcapping")
    model["attention"]["softcap"] = keys.nullable(names[0], scores) > 0
    model["logit_softcap"] = keys.nullable(names[1], logits) > 0
    keys.overrule("that it is capped changes kernels, at what value does not", *names)


def gemma3(keys: Keys) -> Tree:
    """Read Gemma 3's text model: norms of queries and keys, one layer of six without a window."""
    model = gemma(keys, norms="both")
    model["attention"]["qk_norm"] = "head"
    _cap(keys, model, 0, 0)
    keys.choice("use_bidirectional_attention", {False: None}, default=False)
    pattern = keys.count("sliding_window_pattern", keys.count("_sliding_window_pattern", 6, least=1), least=1)
    return windowed(keys, model, lambda layer: (layer + 1) % pattern != 0, default=4096)
