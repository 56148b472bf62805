"""What a launch script passes to the program that it starts: its text read, never run; and arguments by name.

Variables, arrays, defaults (`${TP:-8}`) and arithmetic are followed in the order of the lines. Branches and
loops are not: what stands in them is read as if it ran, and variables that it sets are named. Arguments are
taken as Megatron-LM's parser takes them.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rapid_des.errors import ConfigError
from rapid_des.frontend.importing.keys import Keys, Tree, shortened

Words = list[str]

_ASSIGNMENT = re.compile(r"(?:(?:export|local|readonly|declare(?:\s+-\w+)*)\s+)?([A-Za-z_]\w*)(\+?)=")
_REFERENCE = re.compile(
    r"\$\(\((?P<sum>.*?)\)\)"
    r"|\$\{(?P<braced>\w+)(?:\[[@*]\])?(?::?[-=](?P<default>[^{}]*))?\}|\$(?P<plain>\w+)"
)
_OPENS = re.compile(r"(if|for|while|case|until)\b")
_CLOSES = re.compile(r"(fi|done|esac)\b")
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_MOST_DEEP = 50
_MOST_EXPANDED = 1 << 20
"""Characters that variables of one word stand for: those that refer to themselves would double for ever."""


@dataclass
class _Value:
    """What a variable holds, as text between blanks, and which variables that depends on."""

    text: str
    uses: set[str] = field(default_factory=set)


@dataclass
class Launch:
    """One program started by a script."""

    launcher: Words
    """What stands before the program: torchrun and its options."""
    arguments: Words
    """What stands after it."""
    conditional: tuple[str, ...]
    """Variables in them that the script sets in a branch or loop."""


def read_launch(text: str, known: Mapping[str, str], marks: frozenset[str]) -> Launch:
    """Return the last command that passes one of `marks` (`--num-layers`) to a Python program.

    `known` are variables that hold whatever the script sets. A text without such a command is a list of
    arguments. Words that refer to variables nobody sets keep their `$`.
    """
    script = _Script({name: _Value(value) for name, value in known.items()}, frozenset(known))
    commands = list(script.commands(text))
    for words, uses in reversed(commands):
        programs = [place for place, word in enumerate(words) if word.endswith(".py")]
        if programs and marks.intersection(words):
            first = programs[0]
            return Launch(words[:first], words[first + 1 :], _sorted(uses & script.conditional))
    everything = [word for words, _ in commands for word in words]
    uses = {name for _, names in commands for name in names}
    return Launch([], everything, _sorted(uses & script.conditional))


def _sorted(names: set[str]) -> tuple[str, ...]:
    return tuple(sorted(names))


@dataclass
class _Script:
    """A script while its lines are read."""

    variables: dict[str, _Value]
    fixed: frozenset[str]
    conditional: set[str] = field(default_factory=set)
    depth: int = 0

    def commands(self, text: str) -> Iterator[tuple[Words, set[str]]]:
        """Yield the words of every command, and the variables they depend on."""
        for statement in _statements(text):
            if _CLOSES.match(statement):
                self.depth = max(0, self.depth - 1)
            if _OPENS.match(statement):
                self.depth += 1
            rest = self._assigned(statement)
            if rest:
                value = self._expanded(rest)
                yield _words(value.text), value.uses

    def _assigned(self, statement: str) -> str:
        """Make the assignments that a statement begins with; return what follows."""
        while match := _ASSIGNMENT.match(statement):
            end = _end_of_value(statement, match.end())
            text = statement[match.end() : end]
            name, value = match[1], self._expanded(text[1:-1] if text.startswith("(") else text)
            statement = statement[end:].lstrip()
            if name in self.fixed:
                continue
            before = self.variables.get(name)
            if match[2] and before is not None:
                value = _Value(f"{before.text} {value.text}", value.uses | before.uses)
            if self.depth and before is not None and before.text != value.text:
                self.conditional.add(name)
            self.variables[name] = value
        return statement

    def _expanded(self, text: str) -> _Value:
        uses: set[str] = set()
        room = _MOST_EXPANDED

        def replaced(match: re.Match[str]) -> str:
            if match["sum"] is not None:
                inner = self._expanded(re.sub(r"\b([A-Za-z_]\w*)\b", r"$\1", match["sum"].replace("$", "")))
                uses.update(inner.uses)
                result = _calculated(inner.text)
                return match[0] if result is None else str(result)
            nonlocal room
            name = match["braced"] or match["plain"]
            value = self.variables.get(name)
            uses.add(name)
            if value is not None and (value.text or match["default"] is None):
                uses.update(value.uses)
                room -= len(value.text)
                return value.text if room > 0 else match[0]
            return match[0] if match["default"] is None else match["default"]

        for _ in range(_MOST_DEEP):  # a default may refer to another variable
            changed = _REFERENCE.sub(replaced, text)
            if changed == text:
                break
            text = changed
        return _Value(text, uses)


def _calculated(text: str) -> int | None:
    """Return a sum of whole numbers; None where it is none.

    >>> _calculated("8 * (2 + 1)"), _calculated("8 * $NODES")
    (24, None)
    """
    try:
        return _sum_of(ast.parse(text.strip().strip("\"'"), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _sum_of(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_sum_of(node.left), _sum_of(node.right))
    raise ValueError("no sum")


def _words(text: str) -> Words:
    """Return the words of a text, quotes taken off."""
    return re.sub(r"[\"'\\]", "", text).split()


def _statements(text: str) -> Iterator[str]:
    """Yield the statements of a script: lines without comments, joined where a quote or list goes on."""
    collected = ""
    for line in text.replace("\\\n", " ").splitlines():
        collected = f"{collected} {_without_comment(line)}".strip()
        if not _is_open(collected):
            yield from _split(collected)
            collected = ""
    yield from _split(collected)


def _without_comment(line: str) -> str:
    for match in re.finditer(r"(?:^|\s)#", line):
        if not _quote_at(line[: match.start()]):
            return line[: match.start()]
    return line


def _quote_at(text: str) -> str:
    """Return the quote that is open at the end of a text, or nothing."""
    quote = ""
    for place, letter in enumerate(text):
        if letter in "\"'" and quote in {"", letter} and text[place - 1 : place] != "\\":
            quote = "" if quote else letter
    return quote


def _is_open(text: str) -> bool:
    """Tell whether a statement goes on in the next line."""
    if _quote_at(text):
        return True
    listed = re.search(r"\w\+?=\(", text)
    return bool(listed) and text.count("(") > text.count(")")


def _split(text: str) -> Iterator[str]:
    """Yield what semicolons and keywords outside quotes part."""
    start = 0
    for match in re.finditer(r";+|&&|\|\|", text):
        if not _quote_at(text[: match.start()]):
            yield from _without_keyword(text[start : match.start()])
            start = match.end()
    yield from _without_keyword(text[start:])


def _without_keyword(statement: str) -> Iterator[str]:
    statement = re.sub(r"^\s*(then|else|do|\{)\s+", "", statement).strip()
    if statement:
        yield statement


def _end_of_value(statement: str, start: int) -> int:
    """Return where the value that starts at `start` ends: a word, a quoted text, or a list."""
    if statement[start : start + 1] == "(":
        depth = 0
        for place in range(start, len(statement)):
            depth += {"(": 1, ")": -1}.get(statement[place], 0)
            if depth == 0:
                return place + 1
        return len(statement)
    depth = 0
    for place in range(start, len(statement)):
        depth += {"(": 1, ")": -1, "{": 1, "}": -1}.get(statement[place], 0)
        if statement[place].isspace() and depth <= 0 and not _quote_at(statement[start:place]):
            return place
    return len(statement)


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
            problem = f"{shortened(value)} is set nowhere in the script; give --variable NAME=VALUE"
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
