"""Llama and its variants: which keys each has, and the model file that they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rapid_des.errors import ConfigError
from rapid_des.importers.hugging_face.ignored import DROPOUT
from rapid_des.importers.keys import Keys, Tree, spread

ANGLES = "it changes by which angles positions rotate, no shape"
"""Reason why keys of rotary embeddings have no effect, except the rotated share of a head."""
GATED = {"silu": "swiglu", "swish": "swiglu"}


def llama(keys: Keys, *, qk_norm: str = "none", qkv_bias: bool = False, tied: bool = False) -> Tree:
    """Read Llama and those that differ from it in biases and norms of queries and keys."""
    hidden, bias = keys.count("hidden_size"), keys.flag("attention_bias", default=qkv_bias)
    attention = attention_of(keys) | {"qkv_bias": bias, "qk_norm": qk_norm}
    attention["output_bias"] = bias and not qkv_bias
    feed_forward = {
        "activation": keys.choice("hidden_act", GATED, "silu"),
        "hidden": keys.count("intermediate_size"),
        "bias": keys.flag("mlp_bias", default=False),
    }
    return {
        "hidden": hidden,
        "layers": keys.count("num_hidden_layers", least=1),
        "attention": attention,
        "feed_forward": feed_forward,
        "norm": "rms_norm",
        "position": "rope",
        "vocabulary": keys.count("vocab_size"),
        "max_positions": keys.count("max_position_embeddings"),
        "tied_embeddings": keys.flag("tie_word_embeddings", default=tied),
    }


def attention_of(keys: Keys) -> Tree:
    """Return the attention section: heads, their width, and the rotated share."""
    heads = keys.count("num_attention_heads")
    tree = {"heads": heads, "kv_heads": keys.count("num_key_value_heads", heads)}
    if "head_dim" in keys:
        tree["head_dim"] = keys.count("head_dim")
    share = rotated_share(keys, "partial_rotary_factor", 1.0)
    return tree | ({} if share == 1 else {"rotary": share})


def rotated_share(keys: Keys, key: str, default: float) -> float:
    """Return the rotated share of a head, which newer files state in `rope_parameters`."""
    rope = keys.section("rope_parameters", optional=True)
    if key in keys:
        rope.ignore(f"{key} stands beside it", "partial_rotary_factor")
    share = keys.get(key, float, rope.get("partial_rotary_factor", float, default))
    rope.ignore(ANGLES, *rope.unread())
    return share


def mistral(keys: Keys, *, window: int = 4096) -> Tree:
    """Read Mistral: Llama with a sliding window in every layer."""
    return windowed(keys, llama(keys), lambda _: True, default=window)


def windowed(
    keys: Keys, model: Tree, slides: Callable[[int], bool], *, default: int = 0, **besides: float
) -> Tree:
    """Give a window, and `besides`, to the layers that `layer_types` says, or to those that `slides` does."""
    count, window = model["layers"], int(keys.nullable("sliding_window", default))
    if not window:
        keys.ignore("there is no window", "layer_types", "sliding_window_pattern", "_sliding_window_pattern")
        return model
    types = keys.names("layer_types", count)
    if types is None:
        windowed = [layer for layer in range(count) if slides(layer)]
    else:
        known = {"sliding_attention": True, "full_attention": False}
        flags = [keys_of(known, word, keys) for word in types]
        windowed = [layer for layer, flag in enumerate(flags) if flag]
    return with_layers(model, "attention", model["attention"] | {"window": window} | besides, windowed)


def keys_of(known: Mapping[str, bool], word: str, keys: Keys) -> bool:
    """Return what a word in `layer_types` stands for."""
    return Keys({"layer_types": word}, keys.file).choice("layer_types", known)


def with_layers(model: Tree, part: str, tree: Tree, layers: list[int]) -> Tree:
    """Return the model with `tree` as a part of some layers; what most layers have is the model's own."""
    count = model["layers"]
    if 2 * len(layers) > count:
        others = [layer for layer in range(count) if layer not in set(layers)]
        return with_layers(model | {part: tree}, part, model[part], others)
    places = [place | {part: tree} for place in spread(layers, count)] if layers else []
    return model | {"exceptions": [*model.get("exceptions", []), *places]}


def mixtral(keys: Keys) -> Tree:
    """Read Mixtral: Mistral with experts in every layer."""
    model = mistral(keys, window=0)
    experts = keys.count("num_local_experts", 8)
    return model | {"feed_forward": everywhere(keys, experts, model["feed_forward"]["hidden"])}


def everywhere(keys: Keys, experts: int, hidden: int) -> Tree:
    """Return experts that all layers have."""
    keys.overrule("experts have no biases", "mlp_bias")
    return _experts(keys, experts, hidden)


def _experts(keys: Keys, experts: int, hidden: int) -> Tree:
    topk = keys.count("num_experts_per_tok")
    return {"kind": "experts", "experts": experts, "topk": topk, "hidden": hidden, "activation": "swiglu"}


def qwen2(keys: Keys) -> Tree:
    """Read Qwen2 and Qwen2.5: Llama with biases of queries, keys and values."""
    return _qwen_window(keys, llama(keys, qkv_bias=True))


def _qwen_window(keys: Keys, model: Tree) -> Tree:
    if "sliding_window" not in keys:
        keys.ignore("there is no window (sliding_window)", "use_sliding_window")
    if not keys.flag("use_sliding_window", default=False):
        keys.ignore("use_sliding_window is false", "sliding_window", "layer_types", "max_window_layers")
        return model
    first = keys.count("max_window_layers", 0)
    if first >= model["layers"] and "layer_types" not in keys:
        keys.overrule("max_window_layers leaves no layer a window", "use_sliding_window", "sliding_window")
    return windowed(keys, model, lambda layer: layer >= first)


def qwen3(keys: Keys) -> Tree:
    """Read Qwen3: Llama with norms of each head's queries and keys."""
    return _qwen_window(keys, llama(keys, qk_norm="head"))


def qwen2_moe(keys: Keys) -> Tree:
    """Read Qwen2 with experts: shared ones behind a gate."""
    model = qwen2(keys)
    shared = keys.count("shared_expert_intermediate_size")
    return _sparse(keys, model, {"shared_hidden": shared, "shared_gate": True})


def qwen3_moe(keys: Keys) -> Tree:
    """Read Qwen3 with experts."""
    keys.choice("use_qk_norm", {True: None}, default=True)
    keys.choice("qkv_bias", {False: None}, default=False)
    keys.choice("shared_expert_intermediate_size", {0: None}, default=0)
    return _sparse(keys, qwen3(keys), {})


def _sparse(keys: Keys, model: Tree, shared: Tree) -> Tree:
    """Put experts into all layers but those that `decoder_sparse_step` or `mlp_only_layers` leave dense."""
    step, only = (
        keys.count("decoder_sparse_step", 1, least=1),
        keys.layers("mlp_only_layers", model["layers"], []),
    )
    experts = _experts(keys, keys.count("num_experts"), keys.count("moe_intermediate_size")) | shared
    layers = [layer for layer in range(model["layers"]) if (layer + 1) % step == 0 and layer not in only]
    if len(layers) == model["layers"]:
        keys.overrule("every layer has experts", "intermediate_size", "mlp_bias")
    return with_layers(model, "feed_forward", experts, layers)


def deepseek(keys: Keys, *, corrected: bool = False) -> Tree:
    """Read DeepSeek-V2 and V3: latent attention, the first layers dense; `corrected`: a bias an expert."""
    keys.choice("attention_bias", {False: None}, default=False)
    model = llama(keys)
    keys.overrule("latent attention has one latent for all heads", "num_key_value_heads")
    if predictions(keys):
        model["predictions"] = predictions(keys)
    model["attention"] = {
        "kind": "latent_attention",
        "heads": keys.count("num_attention_heads"),
        "kv_rank": keys.count("kv_lora_rank"),
        "head_dim": keys.count("qk_nope_head_dim"),
        "rope_dim": keys.count("qk_rope_head_dim"),
        "value_dim": keys.count("v_head_dim"),
    } | ({"q_rank": keys.count("q_lora_rank")} if "q_lora_rank" in keys else {})
    keys.ignore("it is qk_nope_head_dim + qk_rope_head_dim", "qk_head_dim")
    width = keys.count("moe_intermediate_size")
    experts = _experts(keys, keys.count("n_routed_experts"), width)
    experts |= {"shared_hidden": width * keys.count("n_shared_experts", 0), "router_bias": corrected}
    first, every = keys.count("first_k_dense_replace", 0), keys.count("moe_layer_freq", 1, least=1)
    layers = [layer for layer in range(model["layers"]) if layer >= first and layer % every == 0]
    return with_layers(model, "feed_forward", experts, layers)


def predictions(keys: Keys) -> int:
    """Return how many modules predict further tokens."""
    count = keys.count("num_nextn_predict_layers", 0)
    said = "num_nextn_predict_layers: layers that predict further tokens are not among the parameters"
    if count and said not in keys.notes:
        keys.notes.append(said)
    return count


def deepseek_v32(keys: Keys) -> Tree:
    """Read DeepSeek-V3.2 and GLM-5: DeepSeek-V3 of which an indexer chooses what queries attend to."""
    types = keys.names("indexer_types", keys.count("num_hidden_layers", least=1)) or ["full"]
    if any(kind != "full" for kind in types):
        raise keys.error("layers that share the choices of another one are not simulated", "indexer_types")
    keys.ignore("every layer has an indexer (indexer_types)", "index_topk_freq", "index_skip_topk_offset")
    keys.ignore("first_k_dense_replace says it", "mlp_layer_types")
    keys.ignore(ANGLES, "rope_interleave", "indexer_rope_interleave")
    keys.ignore("qk_nope_head_dim, qk_rope_head_dim and v_head_dim say it", "head_dim")
    keys.ignore("it says which experts tokens choose, not how many", "moe_router_dtype")
    model = deepseek(keys, corrected=True)
    model["attention"]["indexer"] = {
        "heads": keys.count("index_n_heads"),
        "head_dim": keys.count("index_head_dim"),
        "topk": keys.count("index_topk", least=1),
    }
    return model


def deepseek_v3(keys: Keys) -> Tree:
    """Read DeepSeek-V3 and R1, whose router has a correction an expert."""
    return deepseek(keys, corrected=True)


def gpt_oss(keys: Keys) -> Tree:
    """Read gpt-oss: a sink a head, every other layer a window, experts and router with biases."""
    model = llama(keys)
    bias = keys.flag("attention_bias", default=True)
    model["attention"] |= {"qkv_bias": bias, "output_bias": bias, "sinks": True}
    hidden = keys.count("intermediate_size")
    experts = _experts(keys, keys.count("num_local_experts"), hidden)
    model["feed_forward"] = experts | {"bias": True, "router_bias": True}
    return windowed(keys, model, lambda layer: layer % 2 == 0, default=128)


def cohere(keys: Keys) -> Tree:
    """Read Command R: one layer norm without bias for both halves."""
    keys.choice("use_qk_norm", {False: None}, default=False)
    model = llama(keys, tied=True)
    return model | {"norm": "layer_norm", "norm_bias": False, "block": "parallel_one_norm"}


def cohere2(keys: Keys) -> Tree:
    """Read Command R7B: Command R with a window in three layers of four; the fourth does not rotate."""
    keys.choice("use_parallel_block", {True: None}, default=True)
    keys.choice("use_gated_activation", {True: None}, default=True)
    reason = "sliding_window_pattern or layer_types, and tie_word_embeddings, say it"
    keys.ignore(reason, "layer_switch", "order_of_interleaved_layers", "position_embedding_type")
    keys.ignore(reason, "rotary_pct", "use_embedding_sharing", "use_parallel_embedding")
    model, pattern = cohere(keys), keys.count("sliding_window_pattern", 4, least=1)
    still = model | {"attention": model["attention"] | {"rotary": 0.0}}
    return windowed(keys, still, lambda layer: (layer + 1) % pattern != 0, default=4096, rotary=1.0)


def seed_oss(keys: Keys) -> Tree:
    """Read Seed-OSS: Llama with biases of queries, keys and values."""
    keys.ignore(DROPOUT, "residual_dropout")
    model = llama(keys, qkv_bias=True)
    model["attention"]["output_bias"] = keys.flag("attention_out_bias", default=False)
    return model


def glm(keys: Keys, *, norms: str = "before") -> Tree:
    """Read GLM-4-9B: half of each head rotated, biases of queries, keys and values."""
    model = llama(keys, qkv_bias=True) | {"norms": norms}
    model["attention"]["rotary"] = rotated_share(keys, "partial_rotary_factor", 0.5)
    return model


def glm4(keys: Keys) -> Tree:
    """Read GLM-4-0414: as before, with norms of what halves add."""
    return glm(keys, norms="both")


def olmo(keys: Keys) -> Tree:
    """Read OLMo: layer norms without parameters."""
    keys.ignore("queries, keys and values are clamped where they are made", "clip_qkv")
    return llama(keys) | {"norm": "layer_norm", "norm_bias": False, "norm_gain": False}


def olmo3(keys: Keys) -> Tree:
    """Read OLMo 3: OLMo 2 with a window in three layers of four."""
    return windowed(keys, olmo2(keys), lambda layer: (layer + 1) % 4 != 0, default=4096)


def olmo2(keys: Keys) -> Tree:
    """Read OLMo 2: norms of what halves add, and of all queries and keys together."""
    return llama(keys, qk_norm="whole") | {"norms": "after"}


def olmoe(keys: Keys) -> Tree:
    """Read OLMoE: experts in every layer, norms of all queries and keys together."""
    model = llama(keys, qk_norm="whole")
    return model | {
        "feed_forward": everywhere(keys, keys.count("num_experts"), model["feed_forward"]["hidden"])
    }


def glm4_moe(keys: Keys) -> Tree:
    """Read GLM-4.5: experts behind the first layers, one shared, a correction an expert."""
    normed = "head" if keys.flag("use_qk_norm", default=False) else "none"
    model = glm(keys) | {"predictions": predictions(keys)}
    model["attention"] |= {"qkv_bias": keys.flag("attention_bias", default=False), "qk_norm": normed}
    width, first = keys.count("moe_intermediate_size"), keys.count("first_k_dense_replace", 1)
    experts = _experts(keys, keys.count("n_routed_experts"), width)
    experts |= {"shared_hidden": width * keys.count("n_shared_experts", 1), "router_bias": True}
    return with_layers(model, "feed_forward", experts, list(range(first, model["layers"])))


def granitemoe(keys: Keys) -> Tree:
    """Read Granite 3 with experts in every layer."""
    model = llama(keys)
    experts = everywhere(keys, keys.count("num_local_experts"), model["feed_forward"]["hidden"])
    return model | {"feed_forward": experts}


def smollm3(keys: Keys) -> Tree:
    """Read SmolLM3: one layer of four does not rotate queries and keys."""
    model, every = llama(keys, tied=True), keys.count("no_rope_layer_interval", 4, least=1)
    count = model["layers"]
    if "no_rope_layers" in keys:
        keys.overrule("no_rope_layers says it", "no_rope_layer_interval")
    rotated = keys.get("no_rope_layers", list, [(layer + 1) % every for layer in range(count)])
    if len(rotated) != count:
        raise ConfigError(f"must be a list of {count} layers", file=keys.file, key="no_rope_layers")
    still = [layer for layer, flag in enumerate(rotated) if not flag]
    model = with_layers(model, "attention", model["attention"] | {"rotary": 0.0}, still)
    return _qwen_window(keys, model)


def phi3(keys: Keys) -> Tree:
    """Read Phi-3: Llama with a window in every layer."""
    keys.ignore(ANGLES, "original_max_position_embeddings")
    return windowed(keys, llama(keys), lambda _: True)


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
