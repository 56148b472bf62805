"""The model section of a job file from a model file of RAPID-LLM."""

from __future__ import annotations

from rapid_des.importers.keys import Tree, sparse
from rapid_des.importers.rapid_llm.device import Section

TYPES = {"gpt": "gpt", **dict.fromkeys(("llama", "deepseek_v3", "glm4_moe", "glm4", "glm"), "llama")}
"""The layer type by `model_type`: GPT's layers, or those of Llama."""
MOST_EXPERTS = 2**16
_LATENT = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_OF_EXPERTS = ("top_k", "moe_intermediate_size", "n_shared_experts", "expert_imbalance_factor",
               "moe_layer_freq", "first_k_dense_replace")  # fmt: skip


def sparse_layers(soft: Section) -> range:
    """Return the layers that have experts."""
    layers, moe = soft.count("num_layers", least=1), soft.section("moe", optional=True)
    if moe.count("num_experts", 1, most=MOST_EXPERTS) <= 1:
        moe.ignore("no layer has experts where num_experts is 1", *_OF_EXPERTS)
        return range(0)
    first, every = moe.count("first_k_dense_replace", 0), moe.count("moe_layer_freq", 1)
    return range(first, layers, every) if every else range(0)


def model_of(soft: Section) -> Tree:
    """Return the keys of a model file."""
    llama = soft.choice("model_type", TYPES) == "llama"
    chosen, layers = sparse_layers(soft), soft.count("num_layers", least=1)
    activation = "swiglu" if llama else "gelu"
    if len(chosen) == layers:
        soft.ignore("every layer has experts", "intermediate_size")
        width = soft.section("moe").count("moe_intermediate_size")
    else:
        width = soft.count("intermediate_size")
    soft.choice("disable_embedding_unembedding", {False: None}, default=False)
    model: Tree = {
        "hidden": soft.count("hidden_dim"),
        "layers": layers,
        "attention": _attention(soft.section("attention")),
        "feed_forward": {"activation": activation, "hidden": width},
        "norm": "rms_norm" if llama else "layer_norm",
        "position": "rope" if llama else "learned",
        "vocabulary": soft.count("vocab_size"),
        "max_positions": soft.count("seq_len"),
        "tied_embeddings": soft.flag("tied_embeddings", default=True),
    }
    return model | _experts(soft.section("moe", optional=True), model["feed_forward"], chosen)


def _attention(keys: Section) -> Tree:
    kind = keys.choice("attention_type", {name: name for name in ("mha", "gqa", "mla")})
    heads = keys.count("num_heads", least=1)
    keys.ignore("kernels have tiles of their own", "attention_tile_size")
    if kind == "mla":
        keys.ignore("attention is mla", "kv_heads", "head_dim")
        return sparse(
            kind="latent_attention",
            heads=heads,
            kv_rank=keys.count("kv_lora_rank"),
            q_rank=keys.count("q_lora_rank", 0) or None,
            head_dim=keys.count("qk_nope_head_dim"),
            rope_dim=keys.count("qk_rope_head_dim"),
            value_dim=keys.count("v_head_dim"),
        )
    keys.ignore(f"attention is {kind}", *_LATENT)
    if kind == "mha":
        keys.ignore("mha has as many as num_heads", "kv_heads")
    shared = keys.count("kv_heads", heads) if kind == "gqa" else heads
    return sparse(heads=heads, kv_heads=shared, head_dim=keys.count("head_dim", 0) or None)


def _experts(moe: Section, dense: Tree, chosen: range) -> Tree:
    """Return the expert keys of a model file; empty where no layer has experts."""
    if not chosen:
        reason = "first_k_dense_replace and moe_layer_freq leave no layer with experts"
        moe.ignore(reason, *_OF_EXPERTS)
        if moe.count("num_experts", 1, most=MOST_EXPERTS) > 1:
            moe.overrule(reason, "num_experts")
        return {}
    width = moe.count("moe_intermediate_size")
    routed = {
        "kind": "experts",
        "experts": moe.count("num_experts", most=MOST_EXPERTS),
        "topk": moe.count("top_k", 1),
        "hidden": width,
        "activation": dense["activation"],
        "shared_hidden": width * moe.count("n_shared_experts", 0),
    }
    if chosen.step > 1:
        return {"exceptions": [{"start": chosen.start, "every": chosen.step, "feed_forward": routed}]}
    exceptions = [{"stop": chosen.start, "feed_forward": dense}] if chosen.start else []
    return {"feed_forward": routed} | ({"exceptions": exceptions} if exceptions else {})


def load_of(moe: Section) -> Tree | None:
    """Return how tokens spread over experts where one is hotter than the mean by a factor; None: evenly.

    Of E experts that one has `factor` shares of the mean, the others (E - factor) / (E - 1) each.
    """
    factor, experts = (
        moe.get("expert_imbalance_factor", float, 1.0),
        moe.count("num_experts", most=MOST_EXPERTS),
    )
    if not 1 <= factor <= experts:
        raise moe.error(f"{factor:g}; allowed: 1 to num_experts, {experts}", "expert_imbalance_factor")
    if factor == 1:
        return None
    scale = 1_000_000
    hot, others = round(factor * (experts - 1) * scale), round((experts - factor) * scale)
    return {"kind": "histogram", "counts": [[hot, *[others] * (experts - 1)]]}
