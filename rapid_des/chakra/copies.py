"""Files of a set that are byte for byte the same: understood once, for all their ranks."""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rapid_des.chakra.interpret import Interpreted
from rapid_des.chakra.meaning import Origin

Key = tuple[str, bytes]


@dataclass(frozen=True)
class Original:
    """The first file of those that are the same, as it was understood."""

    result: Interpreted
    origin: Origin
    named: Mapping[str, str]
    """What its nodes call groups, and which groups that means."""

    def again(
        self, path: Path, rank: int, group_named: Callable[[str], str]
    ) -> tuple[Interpreted, Origin] | None:
        """Return the same for another rank; None if one of its groups means another than here."""
        if any(group_named(text) != group for text, group in self.named.items()):
            return None
        return self.result, replace(self.origin, file=str(path), rank=rank, group_named=group_named)


class Copies:
    """Tells which of a set's files are the same; those whose size no other has are not looked into."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._sizes = {path: path.stat().st_size for path in paths if path.is_file()}
        self._often = Counter(self._sizes.values())
        self._seen: dict[Path, Key] = {}
        self.known: dict[Key, Original] = {}

    def size(self, path: Path) -> int:
        """Return how many bytes a file has."""
        return self._sizes.get(path, 0)

    def key(self, path: Path, content: bytes | None = None) -> Key | None:
        """Return what equal files share, or None for a file that is surely the only one of its kind.

        `content` is the file's, where it has been read.
        """
        if self._often[self._sizes.get(path, -1)] < 2:
            return None
        if path not in self._seen:
            try:
                with path.open("rb") if content is None else io.BytesIO(content) as stream:
                    digest = hashlib.file_digest(stream, "blake2b").digest()
            except OSError:  # whoever reads it says what is wrong
                return None
            self._seen[path] = path.suffix, digest
        return self._seen[path]
