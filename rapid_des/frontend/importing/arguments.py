"""Arguments of a program by name, as Megatron-LM's parser takes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rapid_des.errors import ConfigError
from rapid_des.frontend.importing.jobs import Tree
from rapid_des.frontend.importing.keys import Keys
from rapid_des.frontend.importing.shell import Words

WITHOUT_MEANING = (
    "adam-", "apply-layernorm-1p", "apply-query-key", "async-save", "attention-softmax-in-fp32",
    "auto-detect", "bert-", "calculate-per", "check-", "ckpt", "config-logger", "create-attention",
    "cross-entropy", "data-", "dataloader", "decoupled-", "deterministic", "dist-ckpt", "distributed-",
    "empty-unused", "end-weight", "enable-experimental", "eod-", "eval-", "exit-", "export-", "finetune",
    "fp8-amax", "fp8-interval", "fp8-margin", "hysteresis", "inference-", "init-method", "initial-loss",
    "iteration", "layernorm-epsilon", "legacy-", "load", "local-rank", "log-", "loss-scale", "lr",
    "manual-gc", "merge-file", "min-loss", "min-lr", "mmap", "mock-data", "moe-aux", "moe-router-bias",
    "moe-router-dtype", "moe-router-force", "moe-router-group", "moe-router-load", "moe-router-num-groups",
    "moe-router-pre", "moe-router-score", "moe-router-topk-", "moe-z", "mscale", "nccl-", "no-async",
    "no-barrier", "no-bias", "no-check", "no-create", "no-initialization", "no-load", "no-log",
    "no-masked", "no-mmap", "no-one", "no-persist", "no-position", "no-query", "no-rope-fusion", "no-save",
    "norm-epsilon", "num-dataset", "num-workers", "one-logger", "override-", "perform-init", "profile",
    "pytorch-", "rampup-", "record-memory", "rerun-", "reset-", "retro-", "rope-scaling", "rotary-base",
    "rotary-interleaved", "rotary-scaling", "rotary-seq", "save", "seed", "sgd-", "split", "start-weight",
    "straggler", "tensorboard", "test-", "tiktoken", "timing-", "tokenizer-model", "train-",
    "transformer-impl", "use-checkpoint", "use-cpu-init", "use-flash-attn", "use-legacy", "use-mcore",
    "use-pytorch", "use-rope-scaling", "valid-", "vocab-file", "wandb", "weight-decay",
)  # fmt: skip
"""Names, paths, rates, seeds, logs and data: begin of arguments that change neither shapes nor kernels."""


@dataclass
class Arguments(Keys):
    """Arguments by name without dashes; those that refer to a variable nobody sets are refused when read."""

    def get(self, key: str, kind: type[Any], default: Any = ...) -> Any:
        """Return a value of a kind; without a default it must be there."""
        self._require_known(key)
        return super().get(key, kind, default) if default is not ... else super().get(key, kind)

    def choice(self, key: str, allowed: Mapping[Any, Any], default: Any = ...) -> Any:
        """Return what a value stands for; another value is refused with those allowed."""
        self._require_known(key)
        return super().choice(key, allowed, default) if default is not ... else super().choice(key, allowed)

    def _require_known(self, key: str) -> None:
        value = self.tree.get(key)
        if isinstance(value, str) and "$" in value:
            problem = f"{value} is set nowhere in the script; give --variable NAME=VALUE"
            raise ConfigError(problem, file=self.file, key=f"--{key}")

    def given(self, key: str) -> bool:
        """Tell whether a flag stands there."""
        return self.flag(key, default=False)

    def left_out(self) -> list[str]:
        """Return the arguments that mean something and that nobody has read."""
        return [
            f"--{key}" if self.tree[key] is True else f"--{key} {self.tree[key]}"
            for key in sorted(self.unread())
            if not key.startswith(WITHOUT_MEANING)
        ]


def by_name(words: Words) -> Tree:
    """Return arguments by name: True for a flag; of one that stands twice the last holds, as for argparse.

    >>> by_name("--bf16 --num-layers 2 --lr 1e-4 --split 99,1 --num-layers=3".split())
    {'bf16': True, 'num-layers': 3, 'lr': 0.0001, 'split': '99,1'}
    """
    tree: Tree = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, _, value = word[2:].replace("_", "-").partition("=")
            tree[name] = _value(value) if value else True
        elif name:
            before = tree[name]
            tree[name] = _value(word) if before is True else f"{before} {word}"
    return tree


def _value(word: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
