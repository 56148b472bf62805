"""A sample of `validation.mode_bounds`: flattened steps lie within every mode's bound."""

import pytest

from rapid_des.simulation import MODES
from validation.mode_bounds import MACHINES, rows_of


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("seed", [1006, 1011, 1018])
def test_the_flattened_step_lies_within_the_bound_of_every_mode(monkeypatch, kind, seed):
    monkeypatch.setattr("rapid_des.modes.blocks.bounds._MOST_RANKS", 0)  # none is simulated at once
    rows = list(rows_of(seed, kind))
    assert [row.mode for row in rows] == list(MODES[1:])
    assert [row.text for row in rows if not row.holds] == []
