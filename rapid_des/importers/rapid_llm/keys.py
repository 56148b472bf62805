"""The keys of RAPID-LLM's files: quantities in its units, and keys that its times do not depend on."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rapid_des.importers.keys import Keys

_QUANTITY = re.compile(r"([-+]?[0-9.]{1,40}(?:[eE][-+]?[0-9]{1,3})?)\s*([KMGT]?)([Bb]?)\s*")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}

MOST_AMOUNT = 1e30
NOT_READ = "RAPID-LLM does not read it"
BUDGETS = "it belongs to budgets of power and area, which no time depends on"
OF_TRAINING = "inference has no backward, gradients or optimizer"
OF_INFERENCE = "a training step reads parallelism.train and passes whole sequences"


class Section(Keys):
    """A section of RAPID-LLM's files, with readers of its quantities."""

    def quantity(self, key: str, default: float | None = None) -> float:
        """Return a number with a unit of RAPID-LLM: `80 GB` is 80 · 1024³, `8 Gb` an eighth of that."""
        value = self.value(key) if default is None else self.value(key, default)
        return self.amount(value, key)

    def amount(self, value: object, key: str) -> float:
        """Return a value of the file as a number in base units."""
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < MOST_AMOUNT:
            return float(value)
        match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
        if match is None or match[1].count(".") > 1 or not any(map(str.isdigit, match[1])):
            raise self.error(f"{value!r} is no quantity; allowed: a number, with KB, MB, GB, TB or Gb", key)
        amount = float(match[1]) * 1024.0 ** _POWERS[match[2]] / (8 if match[3] == "b" else 1)
        if not abs(amount) < MOST_AMOUNT:
            raise self.error(f"{value!r} is too large", key)
        return amount

    def positive(self, key: str) -> float:
        """Return a quantity above 0."""
        amount = self.quantity(key)
        if not amount > 0:
            raise self.error(f"{amount:g} is not above 0", key)
        return amount


def known(table: Mapping[str, str], value: object, keys: Keys, key: str) -> str:
    """Return the value of a word, in any case; unknown words are refused with those allowed."""
    word = re.sub(r"[-_\s]", "", str(value)).lower()
    if word not in table:
        raise keys.error(f"{value!r} is not understood; allowed: {', '.join(table)}", key)
    return table[word]
