"""The device and the model of RAPID-LLM's files, and readers of the keys of its files."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rapid_des.device.operators import DTYPE_BITS
from rapid_des.importers.keys import Keys, Tree, sparse

_QUANTITY = re.compile(r"([-+]?[0-9.]{1,40}(?:[eE][-+]?[0-9]{1,3})?)\s*([KMGT]?)([Bb]?)\s*")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}

MOST_AMOUNT = 1e30
NOT_READ = "RAPID-LLM does not read it"
BUDGETS = "it belongs to budgets of power and area, which no time depends on"
OF_TRAINING = "inference has no backward, gradients or optimizer"
OF_INFERENCE = "a training step reads parallelism.train and passes whole sequences"


class Section(Keys):
    """A section of RAPID-LLM's files, with readers of its quantities."""

    def quantity(self, key: str, default: float | None = None) -> float:
        """Return a number with a unit of RAPID-LLM: `80 GB` is 80 · 1024³, `8 Gb` an eighth of that."""
        value = self.value(key) if default is None else self.value(key, default)
        return self.amount(value, key)

    def amount(self, value: object, key: str) -> float:
        """Return a value of the file as a number in base units."""
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < MOST_AMOUNT:
            return float(value)
        match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
        if match is None or match[1].count(".") > 1 or not any(map(str.isdigit, match[1])):
            raise self.error(f"{value!r} is no quantity; allowed: a number, with KB, MB, GB, TB or Gb", key)
        amount = float(match[1]) * 1024.0 ** _POWERS[match[2]] / (8 if match[3] == "b" else 1)
        if not abs(amount) < MOST_AMOUNT:
            raise self.error(f"{value!r} is too large", key)
        return amount

    def positive(self, key: str) -> float:
        """Return a quantity above 0."""
        amount = self.quantity(key)
        if not amount > 0:
            raise self.error(f"{amount:g} is not above 0", key)
        return amount


def known(table: Mapping[str, str], value: object, keys: Keys, key: str) -> str:
    """Return the value of a word, in any case; unknown words are refused with those allowed."""
    word = re.sub(r"[-_\s]", "", str(value)).lower()
    if word not in table:
        raise keys.error(f"{value!r} is not understood; allowed: {', '.join(table)}", key)
    return table[word]


BASES = {1024: "h100_sxm", 512: "a100_sxm_80gb", 128: "v100_sxm2"}
"""The preset device for each number of FLOPs per tensor core and clock."""
STORES = {"DRAM": "hbm", "SRAM-L2": "l2", "SRAM-L1": "shared", "SRAM-R": "registers"}
LEVELS = {"l0": ("SRAM-R", "mcu"), "l1": ("SRAM-L1", "mcu-bundle"), "l2": ("SRAM-L2", "global"),
          "l3": ("DRAM", "global")}  # fmt: skip

_BUDGETS = (
    "nominal_power_per_mcu", "nominal_voltage", "threshold_voltage", "margin_voltage", "max_voltage",
    "operating_area_per_mcu", "nominal_frequency", "nominal_area_per_mcu", "static_power_per_bit",
    "area_per_bit", "stack_capacity", "area_per_stack", "mem_ctrl_area", "num_links_per_mm",
    "num_links_per_stack", "num_stacks", "bank_capacity", "controller_area_per_link", "overhead",
)  # fmt: skip
_UTILISED = "kernels of rapid_des have utilisations of their own"


def device_of(hard: Section) -> Tree:
    """Return a device file: that of the chip with such tensor cores, with its own counts, sizes and rates."""
    technology = hard.section("tech_param")
    core = technology.section("core")
    base = core.choice("nominal_flop_rate_per_mcu", BASES)
    sms, clock = core.count("num_bundles", least=1), core.positive("operating_frequency")
    rate = core.count("nominal_flop_rate_per_mcu") * core.count("num_mcu_per_bundle", least=1)
    peak = f"{rate * sms * clock:.6g} FLOP/s"
    launch = f"{hard.section('sw_param').quantity('kernel_launch_overhead', 0) * 1e6:.6g} us"
    hertz = f"{clock / 1e9:.6g} GHz"
    device: Tree = {
        "base": base,
        "name": f"{base} as RAPID-LLM has it",
        "sms": sms,
        "clock": {"peak": hertz, "boost": hertz, "sustained": hertz, "sustained_by_dtype": {}},
        "tensor_peak": {"fp16": peak} if base == "v100_sxm2" else {"fp16": peak, "bf16": peak},
        "launch": {"eager": launch, "graph": launch},
    }
    for key, name in STORES.items():
        device[name] = _store(technology.section(key), sms if name in ("shared", "registers") else 1)
    energy = _energy(core, {key: technology.section(key) for key in STORES})
    _ignore(technology, core)
    _check_levels(hard.section("memory_hierarchy", optional=True))
    hard.notes.append(f"kernels are those of {base}: its constants, vector peaks and peaks of other formats")
    return device | ({"energy": energy} if energy else {})


def _store(store: Section, parts: int) -> Tree:
    store.ignore(_UTILISED, "util")
    store.ignore("the constants of kernels hold the latency of memory", "latency")
    store.ignore(BUDGETS, *_BUDGETS)
    size, bandwidth = int(store.positive("size") / parts), store.positive("bandwidth")
    return {"capacity": f"{size} B", "bandwidth": f"{bandwidth / 1e9:.6g} GB/s"}


def _energy(core: Section, stores: dict[str, Section]) -> Tree:
    """Return joules a FLOP and a bit as picojoules a FLOP and a byte, where all of them are stated."""
    stores["SRAM-R"].ignore("what registers take is in the energy of a FLOP here", "dynamic_energy_per_bit")
    moved = {name: stores[key] for key, name in STORES.items() if key != "SRAM-R"}
    missing = [store for store in moved.values() if "dynamic_energy_per_bit" not in store]
    if missing or "nominal_energy_per_flop" not in core:
        reason = "energies are stated for some levels only, so those of the chip hold"
        core.ignore(reason, "nominal_energy_per_flop")
        for store in moved.values():
            store.ignore(reason, "dynamic_energy_per_bit")
        return {}
    flop = _picojoules(core, "nominal_energy_per_flop", 1)
    energy: Tree = {"flop_pj": dict.fromkeys(DTYPE_BITS, flop)}
    return energy | {
        f"{name}_pj_per_byte": _picojoules(store, "dynamic_energy_per_bit", 8)
        for name, store in moved.items()
    }


def _picojoules(keys: Section, key: str, times: int) -> float:
    joules = keys.quantity(key)
    if joules < 0:
        raise keys.error(f"{joules:g} is below 0", key)
    return float(f"{joules * 1e12 * times:.6g}")


def _ignore(technology: Section, core: Section) -> None:
    core.ignore(_UTILISED, "util")
    core.ignore("kernels have tiles of their own", "FMA_d1", "FMA_d2", "dataflow")
    core.ignore(BUDGETS, *_BUDGETS)
    technology.ignore(f"{NOT_READ}: network.dimensions holds", "network")


def _check_levels(hierarchy: Section) -> None:
    """Refuse levels of memory in another order than devices have them here."""
    for level, (kind, scope) in LEVELS.items():
        keys = hierarchy.section(level, optional=True)
        keys.choice("type", {kind: None}, kind)
        keys.choice("scope", {scope: None}, scope)


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
