"""From what a person names, a folder, a prefix or a file, to one trace file a rank."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from rapid_des.config.presets import expanded, preset_folder
from rapid_des.errors import TraceError

_NUMBERED = re.compile(r"(?P<prefix>.+)\.(?P<rank>\d+)\.(?P<suffix>et|eg|json)(?:\.gz)?\Z")
_BARE = re.compile(r"(?P<prefix>.+)\.(?P<suffix>et|eg)(?:\.gz)?\Z")
_PATTERN = re.compile(r"\.(%d|\*|\{rank\})\.(et|eg)\Z")


@dataclass(frozen=True)
class TraceFiles:
    """One set of trace files: their folder, common prefix, and the file of each rank in ascending order."""

    folder: Path
    prefix: str
    files: dict[int, Path]

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks below the last that have no file, at most a hundred of them."""
        last = max(self.files)
        return tuple(rank for rank in range(min(last, 1 << 20)) if rank not in self.files)[:100]


def discover(reference: str | Path) -> TraceFiles:
    """Return the trace files that a folder, a prefix (`runs/job` for runs/job.0.et, …) or a file means.

    The bare name of a preset under `workloads/traces` works where nothing else has that name.
    """
    path = expanded(_PATTERN.sub("", str(reference)))
    if path.is_dir():
        return _only_set(path)
    if path.is_file():
        return _single(path)
    presets = _sets(preset_folder("job") / "traces")
    if not path.parent.is_dir():
        raise TraceError(f"{path}: no such file or folder")
    sets = _sets(path.parent)
    if path.name in sets:
        return sets[path.name]
    if str(path) in presets:
        return presets[path.name]
    near = difflib.get_close_matches(path.name, sets, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise TraceError(f"{path}: no trace files {path.name}.<rank>.et{hint} {_listing(path.parent, sets)}")


def _listing(folder: Path, sets: dict[str, TraceFiles]) -> str:
    found = ", ".join(f"{name} ({len(sets[name].files)} ranks)" for name in list(sets)[:12])
    more = f" and {len(sets) - 12} more" if len(sets) > 12 else ""
    return f"(prefixes in {folder}: {found}{more})" if sets else f"({folder} has no trace files)"


def _single(path: Path) -> TraceFiles:
    match = _NUMBERED.match(path.name)
    if match:
        return TraceFiles(path.parent, match["prefix"], {int(match["rank"]): path})
    return TraceFiles(path.parent, path.name.split(".")[0], {0: path})


def _only_set(folder: Path) -> TraceFiles:
    sets = _sets(folder)
    if len(sets) > 1:
        raise TraceError(
            f"{folder}: holds several trace sets; name one as FOLDER/PREFIX {_listing(folder, sets)}"
        )
    if sets:
        return next(iter(sets.values()))
    bare = [path for path in _entries(folder) if _BARE.match(path.name)]
    if len(bare) == 1:
        return _single(bare[0])
    named = f"; files without a rank: {', '.join(path.name for path in bare[:6])}" if bare else ""
    archives = [path.name for path in _entries(folder) if path.suffix in {".tar", ".tgz", ".zip"}]
    packed = f"; unpack first: {', '.join(archives[:6])}" if archives else ""
    raise TraceError(f"{folder}: no trace files PREFIX.<rank>.et{named}{packed}")


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise TraceError(f"{folder}: can not be read: {error.strerror or error}") from error


def _sets(folder: Path) -> dict[str, TraceFiles]:
    """Return all sets of a folder by prefix; JSON counts only for prefixes that have no .et or .eg."""
    if not folder.is_dir():
        return {}
    found: dict[str, dict[str, dict[int, Path]]] = {}
    for path in _entries(folder):
        match = _NUMBERED.match(path.name)
        if match is None or not path.is_file():
            continue
        ranks = found.setdefault(match["prefix"], {}).setdefault(match["suffix"], {})
        rank = int(match["rank"])
        if rank in ranks:
            raise TraceError(f"{folder}: rank {rank} has two files, {ranks[rank].name} and {path.name}")
        ranks[rank] = path
    return {
        prefix: TraceFiles(folder, prefix, dict(sorted(_preferred(forms).items())))
        for prefix, forms in sorted(found.items())
    }


def _preferred(forms: dict[str, dict[int, Path]]) -> dict[int, Path]:
    return forms.get("et") or forms.get("eg") or forms["json"]
