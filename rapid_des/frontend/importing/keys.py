"""The keys of another tool's file, each to be read once, and the job file that comes of them, as text.

What nobody reads is refused by name; what is left out of the job is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rapid_des.config import to_yaml
from rapid_des.errors import ConfigError
from rapid_des.frontend.job import Job
from rapid_des.frontend.loading import load_job

T = TypeVar("T")

WITHOUT_MEANING = frozenset((
    "_attn_implementation", "_name_or_path", "_remove_final_layer_norm", "activation_dropout",
    "apply_residual", "architectures", "attention_dropout", "attention_dropout_prob", "attention_multiplier",
    "attention_probs_dropout_prob", "attn_implementation", "attn_pdrop", "auto_map", "aux_loss_alpha",
    "bos_token_id", "cache_implementation", "chunk_size_feed_forward", "decoder_start_token_id", "dropout",
    "dtype", "embd_dropout", "embd_pdrop", "embedding_multiplier", "eos_token_id", "ep_size",
    "experts_per_token", "gradient_checkpointing", "hidden_dropout", "hidden_dropout_prob", "id2label",
    "initial_context_length", "initializer_factor", "initializer_range", "is_decoder", "is_llama_config",
    "label2id", "layer_norm_eps", "layer_norm_epsilon", "layerdrop", "logit_scale", "logits_scaling",
    "model_max_length", "model_type", "n_group", "norm_eps", "norm_topk_prob", "output_attentions",
    "output_hidden_states", "output_router_logits", "pad_token_id", "prefix", "pretraining_tp",
    "query_pre_attn_scalar", "reorder_and_upcast_attn", "resid_pdrop", "residual_multiplier", "return_dict",
    "rms_norm_eps", "rope_interleaved", "rope_local_base_freq", "rope_parameters", "rope_scaling",
    "rope_theta", "rotary_emb_base", "routed_scaling_factor", "router_aux_loss_coef", "router_dtype",
    "router_jitter_noise", "router_z_loss_coef", "scale_attn_by_inverse_layer_idx", "scale_attn_weights",
    "scoring_func", "seq_aux", "sliding_window_size", "summary_activation", "summary_first_dropout",
    "summary_proj_to_logits", "summary_type", "summary_use_proj", "swiglu_limit", "task_specific_params",
    "topk_group", "topk_method", "torch_dtype", "transformers_version", "unsloth_version", "use_bfloat16",
    "use_cache", "use_mrope",
))  # fmt: skip
"""What changes neither a tensor's shape nor which kernels run: names, scales, ranges, what training reads."""
FROM_GENERATION = frozenset((
    "add_cross_attention", "bad_words_ids", "begin_suppress_tokens", "cross_attention_hidden_size",
    "diversity_penalty", "do_sample", "early_stopping", "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id",
    "is_encoder_decoder", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size",
    "num_beam_groups", "num_beams", "num_return_sequences", "output_scores", "problem_type",
    "remove_invalid_values", "repetition_penalty", "return_dict_in_generate", "sep_token_id",
    "suppress_tokens", "temperature", "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "top_k",
    "top_p", "torchscript", "typical_p",
))  # fmt: skip
"""What older versions of transformers write into each config: how text is drawn, tasks, tokenizers."""
_REQUIRED = object()


@dataclass
class Keys:
    """A config.json while an architecture reads it."""

    tree: Mapping[str, Any]
    file: str
    notes: list[str] = field(default_factory=list)
    """What a user must know of the model that comes of it."""
    without_meaning: frozenset[str] = frozenset()
    """What a user says changes nothing."""
    _read: set[str] = field(default_factory=set)

    def __contains__(self, key: str) -> bool:
        return self.tree.get(key) is not None

    def get(self, key: str, kind: type[T], default: Any = _REQUIRED) -> T:
        """Return a value of a kind; without a default it must be there."""
        self._read.add(key)
        value = self.tree.get(key)
        if value is None:
            if default is _REQUIRED:
                raise ConfigError(f"the key {key!r} is missing", file=self.file)
            return default  # type: ignore[no-any-return]
        fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)  # type: ignore[return-value]
        if not fits:
            raise ConfigError(f"{shortened(repr(value))} is no {kind.__name__}", file=self.file, key=key)
        return value  # type: ignore[no-any-return]

    def count(self, key: str, default: Any = _REQUIRED, *, least: int = 0) -> int:
        """Return a whole number from `least` on; the default may be anything."""
        value = self.get(key, int, default)
        if key in self and value < least:
            raise ConfigError(f"{value} is below {least}", file=self.file, key=key)
        return value

    def layers(self, key: str, total: int, default: Any = _REQUIRED) -> list[int]:
        """Return a list of layers of so many in all."""
        layers = self.get(key, list, default)
        strange = [layer for layer in layers if type(layer) is not int or not 0 <= layer < total]
        if strange:
            raise ConfigError(f"{strange[0]!r} is no layer of {total}", file=self.file, key=key)
        return layers

    def nullable(self, key: str, default: float = 0) -> float:
        """Return a number, 0 for null; `default` holds where the key is not there at all."""
        stated = self.tree.get(key, default)
        return 0 if stated is None else self.get(key, float, default)

    def flag(self, key: str, *, default: bool) -> bool:
        """Return yes or no; `default` is that of the architecture's own code."""
        return self.get(key, bool, default)

    def choice(self, key: str, allowed: Mapping[Any, T], default: Any = _REQUIRED) -> T:
        """Return what a value stands for; another value is refused with those allowed."""
        self._read.add(key)
        value = self.tree.get(key)
        if value is None and None not in allowed:
            value = default
        if value is _REQUIRED:
            raise ConfigError(f"the key {key!r} is missing", file=self.file)
        if isinstance(value, (list, dict)) or value not in allowed:
            known = ", ".join(str(name) for name in allowed)
            problem = f"{shortened(repr(value))} is not understood; allowed: {known}"
            raise ConfigError(problem, file=self.file, key=key)
        return allowed[value]

    def names(self, key: str, length: int) -> list[str] | None:
        """Return a list of one word a layer; None where there is none."""
        self._read.add(key)
        value = self.tree.get(key)
        if value is not None and (not isinstance(value, list) or len(value) != length):
            raise ConfigError(f"must be a list of {length} layers", file=self.file, key=key)
        return value

    def ignore(self, *keys: str) -> None:
        """Say that keys change nothing in this architecture."""
        self._read.update(keys)

    def note(self, key: str, text: str) -> None:
        """Say what a user must know where a key is there."""
        self._read.add(key)
        if self.tree.get(key):
            self.notes.append(f"{key}: {text}")

    def unread(self) -> set[str]:
        """Return the keys that nobody has read."""
        return self.tree.keys() - self._read

    def finish(self) -> None:
        """Refuse what nobody has read, by name; null stands for a key that is not there."""
        unread = self.unread() - WITHOUT_MEANING - FROM_GENERATION
        there = sorted(key for key in unread if self.tree[key] is not None)
        self.notes += [f"{key}: left out, as asked" for key in there if key in self.without_meaning]
        strange = [key for key in there if key not in self.without_meaning]
        if strange:
            problem = f"not understood: {_listed(strange, self.tree)}; --ignore KEY leaves one out"
            raise ConfigError(problem, file=self.file)


def _listed(keys: Iterable[str], tree: Mapping[str, Any]) -> str:
    shown = ((key, str(tree[key])) for key in keys)
    return ", ".join(f"{key} ({shortened(text)})" for key, text in shown)


def shortened(text: str) -> str:
    """Return the begin of a long text."""
    return text if len(text) < 40 else text[:36] + " …"


def spread(layers: list[int], total: int) -> list[dict[str, int]]:
    """Return numbered layers as `start`, `stop` and `every` of exceptions.

    >>> spread([0, 1, 2], 9), spread([1, 3, 5], 6), spread([0, 4, 5], 6)
    ([{'stop': 3}], [{'start': 1, 'every': 2}], [{'stop': 1}, {'start': 4}])
    """
    steps = {after - before for before, after in zip(layers, layers[1:], strict=False)}
    if len(layers) > 1 and len(steps) == 1:
        return [_places(layers[0], layers[-1], steps.pop(), total)]
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return [_places(run[0], run[-1], 1, total) for run in runs]


def _places(first: int, last: int, every: int, total: int) -> dict[str, int]:
    stop = {} if last + every >= total else {"stop": last + 1}
    return ({"start": first} if first else {}) | stop | ({"every": every} if every > 1 else {})


Tree = dict[str, Any]


@dataclass(frozen=True)
class ImportedJob:
    """A job with where it comes from."""

    job: Job
    tree: Tree
    """What the job file says; what it leaves to the software's defaults is not in it."""
    source: str
    """The tool and file."""
    notes: tuple[str, ...]
    """What the job file does not say, or says by assumption."""

    def as_yaml(self) -> str:
        """Return the text of a job file."""
        head = "".join(f"# {line}\n" for line in (f"from {self.source}", *self.notes))
        return head + to_yaml(self.tree)


def imported(tree: Tree, file: Path, tool: str, notes: Iterable[str]) -> ImportedJob:
    """Return the checked job; what does not fit together is told by the keys of a job file."""
    try:
        job = load_job(tree)
    except ConfigError as error:
        raise ConfigError(f"as a job file: {error.key}: {error.message}", file=str(file)) from None
    return ImportedJob(job, tree, f"{tool}, {file.name}", tuple(notes))


def replicas(gpus: int, degrees: Mapping[str, int], file: str) -> int:
    """Return how often `gpus` hold the product of `degrees`; a `ConfigError` names what does not divide."""
    product = 1
    for name, size in degrees.items():
        if size < 1:
            raise ConfigError(f"{name} {size} is below 1", file=file)
        product *= size
    if gpus % product:
        split = " · ".join(f"{name} {size}" for name, size in degrees.items())
        raise ConfigError(f"{gpus} GPUs do not divide by {split}", file=file)
    return gpus // product


def sparse(**values: object) -> Tree:
    """Return what is stated: values that are neither None nor an empty mapping."""
    return {key: value for key, value in values.items() if value is not None and value != {}}
