"""Reading YAML and JSON text into plain trees: the untyped boundary."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from rapid_des.errors import ConfigError

Tree: TypeAlias = dict[str, Any]

_LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Document:
    """A file's tree with the path that errors name and references are relative to."""

    path: Path
    tree: Tree = field(hash=False)

    @property
    def folder(self) -> Path:
        """The folder that references inside this document start from."""
        return self.path.parent


class _StrictLoader(_LOADER):  # type: ignore[misc]
    """A safe loader that refuses a key written twice, which YAML libraries drop in silence."""


def _construct_mapping(loader: Any, node: yaml.MappingNode) -> Tree:
    loader.flatten_mapping(node)
    tree: Tree = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str) or key in tree:
            problem = f"the key {key!r} " + (
                "stands twice" if isinstance(key, str) else "is not text: quote it"
            )
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
        tree[key] = loader.construct_object(value_node, deep=True)
    return tree


_StrictLoader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)


def parse_text(text: str, path: Path) -> object:
    """Return the YAML (or JSON) value that `text` holds."""
    try:
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - derived from the safe loader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{place}not valid YAML: {problem}", file=str(path)) from None


def read_text(path: Path) -> str:
    """Return a text file's content; a missing or unreadable file is a `ConfigError`."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"not UTF-8 text (byte {error.start})", file=str(path)) from None
    except OSError as error:
        raise ConfigError(f"can not be read: {error.strerror or error}", file=str(path)) from None


def load_document(path: Path) -> Document:
    """Read one file whose top level is a mapping."""
    tree = parse_text(read_text(path), path)
    if not isinstance(tree, dict):
        kind = "empty" if tree is None else f"a {type(tree).__name__}"
        raise ConfigError(f"the top level must be a mapping of keys, it is {kind}", file=str(path))
    return Document(path, tree)
