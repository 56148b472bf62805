"""The meaning of a file format's field, for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from rapid_des.config.descriptions import Field


def field_lines(key: str, kinds: Mapping[str, Sequence[Field]]) -> Iterator[str]:
    """Yield what a key is in each kind of file that has it."""
    for kind, fields in kinds.items():
        yield f"{key.removeprefix(f'{kind}.')} in a {kind} file"
        for field in fields:
            yield from textwrap.wrap(field.meaning, 100, initial_indent="  ", subsequent_indent="  ")
            yield from textwrap.wrap(
                f"allowed: {field.allowed}", 100, initial_indent="    ", subsequent_indent="      "
            )
            yield f"    {f'default: {field.default}' if field.default else 'must be given'}"
