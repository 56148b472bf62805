"""How long a run is: days, steps or tokens."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

from msgspec import Struct

from rapid_des.errors import InputError
from rapid_des.frontend import Job
from rapid_des.units import PS_PER_S, ceil_divide

_PS_PER_DAY = 86_400 * PS_PER_S
_LARGE = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
_MOST_STEPS = 10**12


class Length(Struct, frozen=True):
    """How long a run is: a time in picoseconds, or a number of steps."""

    horizon: int | None = None
    steps: int | None = None
    tokens: int | None = None
    """The number of tokens that the steps are made of, where that was stated."""

    @classmethod
    def parse(
        cls, job: Job, *, days: float | str | None, steps: int | None, tokens: int | str | None
    ) -> Length:
        """Return the length that exactly one of three figures states; `InputError` says what is allowed."""
        stated = {"days": days, "steps": steps, "tokens": tokens}
        names = [name for name, value in stated.items() if value is not None]
        if len(names) != 1:
            raise InputError(f"{' and '.join(names) or 'none'} of days, steps and tokens: state exactly one")
        number = _number(names[0], str(stated[names[0]]))
        if days is not None:
            return cls(horizon=max(1, int(number * _PS_PER_DAY)))
        count = int(number) if steps is not None else ceil_divide(int(number), job.tokens)
        if not 1 <= count <= _MOST_STEPS or (steps is not None and count != number):
            raise InputError(
                f"{names[0]}: {stated[names[0]]!r}; allowed: a whole number of 1 to {_MOST_STEPS:,} steps"
            )
        return cls(steps=count, tokens=int(number) if tokens is not None else None)


def _number(name: str, text: str) -> Decimal:
    digits, suffix = (text[:-1], text[-1]) if text[-1:].isalpha() else (text, "")
    try:
        number = Decimal(digits) * _LARGE[suffix.upper()] if name == "tokens" else Decimal(text)
        if not 0 < number < 10**18:
            raise InputError(f"{name}: {text!r}; allowed: a number above 0")
    except (InvalidOperation, KeyError):
        example = "15T, 300B or 1e12" if name == "tokens" else "54"
        raise InputError(f"{name}: {text!r} is no number; allowed: such as {example}") from None
    return number
