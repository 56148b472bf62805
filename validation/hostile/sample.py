"""What a kind of input is to the campaign."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

SMALL_MODEL = """model:
  hidden: 1024
  layers: 4
  attention: {heads: 16, kv_heads: 8, head_dim: 64}
  feed_forward: {activation: swiglu, hidden: 2816}
  norm: rms_norm
  position: rope
  vocabulary: 32000
  max_positions: 4096
  tied_embeddings: false
"""
"""The model of attacked jobs: so small that what an attack makes of it runs in time."""


@dataclass(frozen=True)
class Sample:
    """A kind of input: the command that reads it, and good files by name, in the order of attack."""

    command: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    binary: bool = False
    pack: Callable[[bytes], bytes] | None = None
    """Makes of the attacked text the file that is read."""
    line: bool = False
    """Whether the command line is attacked, with files beside it."""
    planted: tuple[str, ...] = ()
    """Texts of which one to three stand in place of names, before anything else is changed."""
    names: tuple[str, ...] = ()
    """The names in the attacked file that are free to be anything."""
    draw: Callable[[random.Random], list[str]] | None = None
    """Draws what is added to the command line; nothing else is attacked then."""
    kept: frozenset[int] = frozenset({0, 1})
    """Places on the command line that are not attacked: the command, and how much work it is to do."""

    @property
    def attacked(self) -> str | None:
        """The name of the file that is attacked; None where it is the command line itself."""
        return None if self.line else next(iter(self.files), None)

    def packed(self, files: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return files as they are read."""
        name = self.attacked
        return dict(files) if self.pack is None or name is None else {**files, name: self.pack(files[name])}


def of(command: str, binary: bool = False, **files: str | bytes) -> Sample:  # noqa: FBT001, FBT002
    """Return the sample of a command whose words bars part; `_dot_` in a file's name is a dot."""
    packed = {
        name.replace("_dot_", "."): text.encode() if isinstance(text, str) else text
        for name, text in files.items()
    }
    return Sample(tuple(command.split("|")), packed, binary)
