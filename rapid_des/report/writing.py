"""Output files, checked before the work and replaced atomically; descriptions of keys."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rapid_des.errors import InputError

if TYPE_CHECKING:
    from rapid_des.config.descriptions import Field

PICTURES = (".png", ".svg", ".pdf")
"""Allowed endings of a picture's name."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a path beside `path` to write to, which takes its place when the block ends without an exception.

    Whoever reads `path` sees the old file or the new one, never a half; what is no file, as /dev/null, is
    written itself. An `OSError` becomes an `InputError`.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        with _named(path):
            yield path
        return
    with _named(path):
        beside = _begun(target)
    try:
        with _named(path):
            yield beside
            beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def _begun(target: Path) -> Path:
    """Create an empty file of the same kind beside a path, and the folders that are not there; return it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.stem}.{os.urandom(6).hex()}{target.suffix}")
    beside.touch(exist_ok=False)
    return beside


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8; see `replacing`."""
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None


def check_outputs(
    paths: Iterable[str | Path | None], *, pictures: Iterable[str | Path | None] = (), replace: bool = True
) -> None:
    """Raise `InputError` for the first path that cannot be written, or whose extra is not installed.

    To be called before a simulation whose result is to be written; None stands for no output. Without
    `replace` files that are there are refused too.
    """
    paths, pictures = tuple(paths), tuple(pictures)
    refuse_present((*paths, *pictures), force=replace)
    for path in (Path(name) for name in paths if name is not None):
        _check_place(path)
        if path.suffix == ".parquet":
            require_extra("pyarrow", "parquet", f"{path}: Parquet")
    for path in (Path(name) for name in pictures if name is not None):
        _check_place(path)
        if path.suffix not in PICTURES:
            raise InputError(f"{path}: allowed: a name that ends in .png, .svg or .pdf")
        require_extra("matplotlib", "plot", f"{path}: a picture")


def refuse_present(paths: Iterable[str | Path | None], *, force: bool) -> None:
    """Raise `InputError` for the first file that is there already, unless it is to be written over."""
    for path in (Path(name) for name in paths if name is not None):
        if not force and path.is_file():
            raise InputError(f"{path}: is there already; --force writes over it")


def require_extra(package: str, extra: str, what: str) -> None:
    """Raise `InputError` if the package of an extra is not installed."""
    if find_spec(package) is None:
        raise InputError(f"{what} needs {package}: pip install {package} (the extra {extra!r} of rapid-des)")


def check_folder(folder: Path) -> None:
    """Raise `InputError` if files cannot be written into a folder, which is made if it is not there yet."""
    _check_place(folder / "file", named=folder)


def _check_place(path: Path, *, named: Path | None = None) -> None:
    """Try to create a file there: permissions alone do not decide it, as root may not write below /sys.

    Of a path whose folders are not there yet, the nearest folder that is there is tried; nothing is made.
    """
    try:
        why = _why_not(path)
    except OSError as error:
        why = error.strerror or str(error)
    if why:
        raise InputError(f"{named or path}: cannot be written: {why}")


def _why_not(path: Path) -> str | None:
    """Return why a file cannot be written; None if it can. An `OSError` says it, too."""
    if path.is_dir():
        return "it is a folder"
    target = path.resolve()
    folder = next(part for part in target.parents if part.exists())
    if not folder.is_dir():
        return f"{folder} is no folder"
    if path.exists() and not path.is_file():
        return None if os.access(path, os.W_OK) else f"no permission to write in {folder}"
    _begun(folder / target.name).unlink()
    return None


def field_lines(key: str, kinds: Mapping[str, Sequence[Field]]) -> Iterator[str]:
    """Yield the meaning of a key in each kind of file that has it."""
    for kind, fields in kinds.items():
        yield f"{key.removeprefix(f'{kind}.')} in a {kind} file"
        for field in fields:
            yield from textwrap.wrap(field.meaning, 100, initial_indent="  ", subsequent_indent="  ")
            yield from textwrap.wrap(
                f"allowed: {field.allowed}", 100, initial_indent="    ", subsequent_indent="      "
            )
            yield f"    {f'default: {field.default}' if field.default else 'must be given'}"
            yield from textwrap.wrap(
                f"example: {field.example}", 100, initial_indent="    ", subsequent_indent="      "
            )
