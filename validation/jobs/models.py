"""Models behind the names in measured files: dimensions from `models.csv`, or a model file.

A folder of `--data` may hold a `models.csv` and files `models/NAME.yaml` of its own, which come first; then
come those of the checkout, then the presets. Names are compared by their letters and digits alone:
`Mixtral-8x22B` and `mixtral_8x22b` are one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rapid_des.config import open_document, preset_names
from validation.jobs.decoders import LLAMA, STYLES, Dimensions, Experts, Style, Tree, decoder
from validation.measurements import CHECKOUT_DATA, DataFolder, Names, Record, UnsupportedRow

FILE = "models.csv"
STYLE_STARTS: Mapping[str, Style] = {
    "llama": LLAMA, "mixtral": LLAMA, "mistral": STYLES["mistral"], "qwen3": STYLES["qwen3"],
    "qwen": LLAMA, "deepseek": LLAMA, "grok": LLAMA, "gptj": STYLES["gpt-j"],
    "gpt": STYLES["gpt"], "megatron": STYLES["gpt"], "opt": STYLES["gpt"], "bloom": STYLES["gpt"],
    "mpt": STYLES["mpt"], "nemotron": STYLES["nemotron"], "falcon": STYLES["falcon"],
}  # fmt: skip
"""Of models whose dimensions a row prints, by the start of the name."""
_NO_NAME = re.compile(r"[^a-z0-9]")
_STYLES: Mapping[str, Style] = Names("style of models", STYLES)


@dataclass(frozen=True)
class Decoder:
    """A model that rows name."""

    style: Style
    size: Dimensions
    """Of a model file about: what null models and layouts need."""
    file: Tree | None = None
    """What its model file holds; None: the dimensions say all."""

    def tree(self, positions: int) -> Tree:
        """Return what a job's key `model` holds."""
        return self.file or decoder(self.style, self.size, positions=positions)


class Models:
    """The models of a folder of measurements, of the checkout, and those whose files ship."""

    def __init__(self, *folders: DataFolder) -> None:
        self._rows: dict[str, Record] = {}
        self._files = _files([folder.path for folder in folders])
        for row in (row for folder in folders for row in folder.read(FILE)):
            for name in (row["name"], *row["aliases"].split(";")):
                self._rows.setdefault(spelled(name), row)

    def __getitem__(self, name: str) -> Decoder:
        """Return the model of that name; `UnsupportedRow` where nothing knows its dimensions."""
        row = self._rows.get(spelled(name))
        if row is not None and row["layers"]:
            return Decoder(_STYLES[row["style"] or "llama"], _dimensions(row))
        file = self._files.get(spelled(name if row is None else row["name"]))
        if file is not None:
            tree = open_document(file, "model", folder=Path()).tree
            return Decoder(LLAMA, _about(tree), tree)
        raise UnsupportedRow(f"no dimensions of model {name[:60]!r}: {FILE} has no such row")


def models_of(data: DataFolder) -> Models:
    """Return the models that the rows of a folder may name."""
    return Models(DataFolder(data.path, split=False), DataFolder(CHECKOUT_DATA, split=False))


@cache
def shipped() -> Models:
    """Return the models of the checkout alone."""
    return Models(DataFolder(CHECKOUT_DATA, split=False))


def spelled(name: str) -> str:
    """Return a name's letters and digits.

    >>> spelled("Mixtral-8x22B") == spelled("mixtral_8x22b")
    True
    """
    return _NO_NAME.sub("", name.lower())


def _files(folders: Sequence[Path]) -> Mapping[str, str]:
    """Return the model files by their names, those of the first folder before all others."""
    presets = {spelled(name): name for name in preset_names("model")}
    written = (path for folder in reversed(folders) for path in sorted((folder / "models").glob("*.yaml")))
    return presets | {spelled(path.stem): str(path) for path in written}


def _dimensions(row: Record) -> Dimensions:
    experts = None
    if row["experts"]:
        shared = row.count("shared_ffn", least=0) if row["shared_ffn"] else 0
        experts = Experts(row.count("experts"), row.count("topk"), row.count("expert_ffn"), shared)
    return Dimensions(
        layers=row.count("layers"),
        hidden=row.count("hidden"),
        heads=row.count("heads"),
        kv_heads=row.count("kv_heads"),
        ffn=row.count("ffn"),
        vocabulary=row.count("vocabulary"),
        head_dim=row.count("head_dim") if row["head_dim"] else 0,
        experts=experts,
    )


def _about(tree: Tree) -> Dimensions:
    """Return about the dimensions of a model file, those of its usual layer."""
    attention, wide = tree["attention"], tree["feed_forward"]
    heads = attention["heads"]
    experts = None
    if wide.get("kind") == "experts":
        experts = Experts(wide["experts"], wide["topk"], wide["hidden"], wide.get("shared_hidden", 0))
    return Dimensions(
        tree["layers"], tree["hidden"], heads, attention.get("kv_heads", heads), wide["hidden"],
        tree["vocabulary"], attention.get("head_dim", 0), experts,
    )  # fmt: skip
