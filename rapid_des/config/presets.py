"""Finding the files that a command or another file names: by path, or by a preset's bare name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

from rapid_des.config.documents import Document, load_document
from rapid_des.config.specs import to_tree
from rapid_des.errors import ConfigError

Kind: TypeAlias = Literal["machine", "device", "job", "model", "software", "rollout", "study"]

KINDS: tuple[Kind, ...] = ("machine", "device", "job", "model", "software", "rollout", "study")
_FOLDERS: dict[str, str] = {
    "machine": "topologies",
    "device": "topologies/devices",
    "job": "workloads",
    "model": "workloads/models",
    "software": "workloads/software",
    "rollout": "workloads/rollouts",
    "study": "workloads/studies",
}
_PACKAGE = Path(__file__).parents[1]


def preset_folder(kind: Kind) -> Path:
    """Return the folder of a kind's presets: inside the wheel, or at the top level of a checkout."""
    return _preset_root(_FOLDERS[kind])


def _preset_root(folder: str) -> Path:
    installed = _PACKAGE / "presets" / folder
    return installed if installed.is_dir() else _PACKAGE.parent / folder


def preset_names(kind: Kind) -> list[str]:
    """Return the bare names of all presets of a kind, sorted."""
    return sorted(path.stem for path in preset_folder(kind).glob("*.yaml"))


def trace_names() -> list[str]:
    """Return the prefixes of the trace sets that ship, sorted."""
    return sorted({path.name.split(".")[0] for path in _preset_root("workloads/traces").glob("*.et")})


def preset_file(name: str) -> Path:
    """Return the file of the preset of a name, whatever its kind; a `ConfigError` lists near names."""
    for kind in KINDS:
        path = preset_folder(kind) / f"{name.removesuffix('.yaml')}.yaml"
        if _is_file(path):
            return path
    known = [preset for kind in KINDS for preset in preset_names(kind)]
    near = ", ".join(difflib.get_close_matches(name, known, n=5)) or ", ".join(known)
    raise ConfigError(f"no preset {name!r}; did you mean one of: {near}")


def open_document(source: str | Path | Mapping[str, Any] | Document, kind: Kind, *, folder: Path) -> Document:
    """Return the document that a path, a preset's name, a mapping or a document stands for.

    References inside a mapping start from `folder`, and errors call it by its kind.
    """
    if isinstance(source, Document):
        return source
    if isinstance(source, Mapping):
        return Document(folder / kind, to_tree(source, kind))
    return load_document(resolve(str(source), kind, folder=folder))


def resolve(reference: str, kind: Kind, *, folder: Path, named_in: str = "", key: str = "") -> Path:
    """Return the file that `reference` names.

    A reference is tried relative to `folder` (the referring file's, or the working directory), as written and
    with `.yaml` added, then as a preset: `topologies/x.yaml`, `x.yaml` and `x` all find the preset x.
    """
    written = folder / expanded(reference)
    name = Path(reference).name
    presets_of = preset_folder(kind)
    candidates = [written, written.parent / f"{name}.yaml", presets_of / name, presets_of / f"{name}.yaml"]
    for candidate in candidates:
        if name and _is_file(candidate):
            return candidate
    presets = preset_names(kind)
    near = difflib.get_close_matches(name.removesuffix(".yaml"), presets, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    problem = f"no {kind} file {reference!r} here and no such preset; {hint}presets: {', '.join(presets)}"
    raise ConfigError(problem, file=named_in, key=key)


def beside(folder: Path, reference: str, *, key: str) -> Path:
    """Return the file that a data file in `folder` names: below that folder, or an absolute path.

    `..` is refused, so that a folder of files that somebody sent reads nothing around it by chance.
    """
    if ".." in Path(reference).parts:
        raise ConfigError(f"{reference[:60]!r} leads out of {folder}; name the file in full", key=key)
    return folder / reference


def expanded(reference: str) -> Path:
    """Return a path with `~` replaced by the home folder; a user who is not there is left as written."""
    try:
        return Path(reference).expanduser()
    except RuntimeError:
        return Path(reference)


def _is_file(path: Path) -> bool:
    """Tell whether a file is there; a name that no file can have (too long, a NUL) is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
