"""The device of a hardware file of RAPID-LLM over a chip's kernels, and readers of the keys of its files."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rapid_des.device.operators import DTYPE_BITS
from rapid_des.importers.keys import Keys, Tree

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
