"""`config.json` of Hugging Face to a model file: parameters as the checkpoint has them, unknown keys refused.

Each architecture is a function that reads its keys and returns what a model file holds; defaults are those of
the architecture's configuration class in transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from rapid_des.config import to_tree, to_yaml
from rapid_des.config.documents import read_text
from rapid_des.config.texts import parse_json
from rapid_des.errors import ConfigError
from rapid_des.frontend.loading import load_model
from rapid_des.frontend.model import Model
from rapid_des.importers import Importer, Option
from rapid_des.importers.hugging_face import clip, gpt, hybrid, llama, minimax, multimodal, siglip, vision
from rapid_des.importers.hugging_face.hub import HUB_ID, hub_config
from rapid_des.importers.hugging_face.ignored import OF_CONFIGS
from rapid_des.importers.hugging_face.t5 import ENCODER_DECODERS, t5
from rapid_des.importers.keys import Ignored, Keys, Outcomes, bounded, by_reason, commented

Tree = dict[str, Any]
Architecture = Callable[[Keys], Tree]


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": llama.llama,
    "llama4": multimodal.llama4_with_images,
    "llama4_text": multimodal.llama4,
    "mistral": llama.mistral,
    "mistral3": multimodal.mistral3,
    "mixtral": llama.mixtral,
    "qwen2": llama.qwen2,
    "qwen2_moe": llama.qwen2_moe,
    "qwen3": llama.qwen3,
    "qwen3_moe": llama.qwen3_moe,
    "qwen3_vl": multimodal.qwen3_with_images,
    "qwen3_vl_moe": multimodal.qwen3_moe_with_images,
    "qwen3_next": hybrid.qwen3_next,
    "qwen3_5": multimodal.qwen3_5_with_images,
    "qwen3_5_text": hybrid.qwen3_5,
    "qwen3_5_moe": multimodal.qwen3_5_moe_with_images,
    "qwen3_5_moe_text": hybrid.qwen3_next,
    "deepseek_v2": llama.deepseek,
    "deepseek_v3": llama.deepseek_v3,
    "deepseek_v32": llama.deepseek_v32,
    "kimi_k2": llama.deepseek_v3,
    "kimi_k25": multimodal.kimi_k25,
    "gpt2": gpt.gpt2,
    "gpt_oss": llama.gpt_oss,
    "gpt_neox": gpt.gpt_neox,
    "opt": gpt.opt,
    "bert": gpt.bert,
    "clip_text_model": clip.text_tower,
    "clip_vision_model": clip.vision_tower,
    "phi": gpt.phi,
    "phi3": llama.phi3,
    "starcoder2": gpt.starcoder2,
    "falcon": gpt.falcon,
    "cohere": llama.cohere,
    "cohere2": llama.cohere2,
    "gemma": llama.gemma,
    "gemma2": llama.gemma2,
    "gemma3_text": llama.gemma3,
    "glm": llama.glm,
    "glm4": llama.glm4,
    "glm4_moe": llama.glm4_moe,
    "glm_moe_dsa": llama.deepseek_v32,
    "granite": llama.llama,
    "granitemoe": llama.granitemoe,
    "granitemoehybrid": hybrid.granite,
    "mamba2": hybrid.mamba2,
    "minimax": minimax.minimax,
    "minimax_m1": minimax.minimax,
    "minimax_m2": minimax.minimax_m2,
    "minimax_text_01": minimax.minimax,
    "nemotron_h": hybrid.nemotron_h,
    "olmo": llama.olmo,
    "olmo2": llama.olmo2,
    "olmo3": llama.olmo3,
    "olmoe": llama.olmoe,
    "seed_oss": llama.seed_oss,
    "siglip_text_model": siglip.text_tower,
    "siglip_vision_model": siglip.vision_tower,
    "smollm3": llama.smollm3,
    "roberta": gpt.bert,
    "mt5": t5,
    "t5": t5,
    "dinov2": vision.dinov2,
    "dinov2_with_registers": vision.dinov2,
    "dinov3_vit": vision.dinov3,
    "vit": vision.vit,
    "xlm-roberta": gpt.bert,
}
"""The importing functions by `model_type`."""
PAIRS: Mapping[str, Mapping[str, Architecture]] = {
    "clip": {"text": clip.text_of_pair, "vision": clip.vision_of_pair},
    "siglip": {"text": siglip.text_of_pair, "vision": siglip.vision_of_pair},
    "gemma3": {"text": multimodal.gemma3_with_images, "both": multimodal.gemma3_both},
    "llava": {"text": multimodal.llava, "both": multimodal.llava_both},
    "paligemma": {"text": multimodal.paligemma, "both": multimodal.paligemma_both},
}
"""The importing functions of configs of two towers, by `model_type` and tower."""
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("distilbert", "electra"), "an encoder with keys or widths of its own"),
    **dict.fromkeys(("umt5", "bart", "whisper"), "an encoder with a decoder that attends to it"),
}
"""The feature that is not simulated of each refused architecture, by `model_type`."""


class ImportedModel(Struct, frozen=True):
    """A model and where it was imported from."""

    model: Model
    architecture: str
    """The `model_type` of the config."""
    notes: tuple[str, ...]
    """What the imported file implies and the model file does not say."""
    ignored: tuple[Ignored, ...]
    """The keys that change nothing, each with the reason."""

    @property
    def summary(self) -> str:
        """The architecture and its parameters."""
        return f"{self.architecture}, {self.model.parameters:,} parameters"

    def as_yaml(self) -> str:
        """Return the text of a model file."""
        head = commented((self.summary, *self.notes, *by_reason(self.ignored)))
        return head + to_yaml(self.model.spec, brief=True)

    def files(self, name: str) -> Mapping[str, str]:
        """Return the model file."""
        return {f"{name}.yaml": self.as_yaml()}

    def as_json(self) -> Tree:
        """Return the model and its parameters as plain data."""
        model = to_tree(self.model.spec, "model")
        return {"architecture": self.architecture, "parameters": self.model.parameters, "model": model}


def import_hugging_face(
    path: str | Path, *, ignore: Collection[str] = (), tower: str | None = None
) -> ImportedModel:
    """Return the model of a config.json, of the one in a folder, or of an id of the Hugging Face hub.

    A `ConfigError` names what is unknown.
    Keys to `ignore` say nothing of shapes or kernels, as whoever names them knows. `tower` chooses one of a
    config of two (CLIP): `text` or `vision`, and of models of images and texts `text` alone or `both`.
    """
    file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    if not file.exists() and HUB_ID.match(file.as_posix()):
        file = hub_config(file.as_posix())
    tree = bounded(parse_json(read_text(file), file, infinite=True), file)
    if not isinstance(tree, Mapping):
        raise ConfigError("holds no JSON object", file=str(file))
    name = tree.get("model_type")
    if isinstance(name, str) and name in REFUSED:
        raise ConfigError(f"{name}: {REFUSED[name]} is not simulated", file=str(file), key="model_type")
    if not isinstance(name, str) or name not in {**ARCHITECTURES, **PAIRS}:
        known = ", ".join((*ARCHITECTURES, *PAIRS))
        raise ConfigError(f"{name!r} is not understood; allowed: {known}", file=str(file), key="model_type")
    outcomes = Outcomes(asked=frozenset(ignore))
    keys = Keys(tree, str(file), outcomes=outcomes)
    keys.value("model_type")
    for key in ("is_encoder_decoder", "add_cross_attention", "tie_encoder_decoder"):
        expected = key == "is_encoder_decoder" and name in ENCODER_DECODERS
        keys.choice(key, {expected: None}, default=expected)
    spec = _reader(name, tower, str(file))(keys)
    keys.ignore_known(OF_CONFIGS)
    keys.finish()
    return ImportedModel(_model(spec, str(file)), name, tuple(outcomes.notes), tuple(outcomes.ignored))


def _reader(name: str, tower: str | None, file: str) -> Architecture:
    """Return what reads a known architecture, or the chosen tower of a pair of them."""
    towers = PAIRS.get(name, {})
    if tower is None and "both" in towers:
        tower = "text"
    if towers and tower not in towers:
        allowed = " or ".join(f"--tower {each}" for each in towers)
        raise ConfigError(f"{name} has two towers; allowed: {allowed}", file=file, key="model_type")
    if tower is not None and not towers:
        raise ConfigError(f"--tower {tower}: {name} has one tower; leave it out", file=file, key="model_type")
    return towers[tower] if tower is not None else ARCHITECTURES[name]


def _model(spec: Tree, file: str) -> Model:
    """Return the checked model; what does not fit together is named by the keys of a model file."""
    try:
        return load_model(spec)
    except ConfigError as error:
        raise ConfigError(f"as a model file: {error.key}: {error.message}", file=file) from None


def _matches(path: Path) -> bool:
    return path.name == "config.json" or (path / "config.json").is_file()


IMPORTER = Importer(
    "Read a Hugging Face config.json, the folder PATH that has one, or an id of the hub (Qwen/Qwen3-8B).",
    match=_matches,
    load=import_hugging_face,
    writes="model",
    options=(
        Option(
            "tower",
            "The tower of a config of two, as CLIP's; both: as Gemma 3's.",
            metavar="text|vision|both",
        ),
    ),
)
