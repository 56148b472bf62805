import sys
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from rapid_des.device import Attention, Gemm
from rapid_des.device.vector_kinds import KINDS
from rapid_des.errors import InputError
from rapid_des.learned import shape_of
from rapid_des.learned.sampling import (
    VECTORS,
    Sampling,
    choose,
    default_operators,
    operand_bytes,
    sample,
)


def test_every_operator_of_the_sweep_has_a_row():
    operators = default_operators() + default_operators(small=True)
    assert all(shape_of(operator) for operator in operators)
    assert len(set(operators)) == len(operators)


def test_every_sampled_vector_kernel_is_a_known_kind():
    assert set(VECTORS) <= set(KINDS)


def test_the_small_sweep_has_enough_rows_for_every_regressor():
    names = [shape_of(operator).name for operator in default_operators(small=True)]
    assert min(names.count(name) for name in names) >= 12


def test_only_some_operators_can_be_chosen():
    chosen = choose(default_operators(), ["softmax", "gelu"])
    assert {operator.kind for operator in chosen} == {"softmax", "gelu"}


def test_a_name_that_no_operator_has_lists_the_names():
    with pytest.raises(InputError, match="--only sotfmax: no operator is called so; there are adamw"):
        choose(default_operators(), ["sotfmax"])


def test_operand_bytes_are_what_a_call_touches():
    # 2 x 3 + 3 x 4 + 2 x 4 elements of 2 bytes.
    assert operand_bytes(Gemm(2, 4, 3)) == 52


def test_sampling_without_torch_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match="needs PyTorch: pip install torch"):
        list(sample([Gemm(8, 8, 8)], Sampling("cpu")))


def test_an_operator_that_no_column_describes_is_refused(monkeypatch):
    torch: Any = ModuleType("torch")
    torch.__version__ = "0"
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(InputError, match="cannot be sampled"):
        list(sample([Attention(1, 8, 8, 4, 4, 64, window=4)], Sampling("cpu")))


def test_samples_become_a_device(tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    from rapid_des.cli.device import fit
    from rapid_des.cli.device import sample as sample_command

    torch.set_num_threads(1)
    table, model = str(tmp_path / "samples.csv"), str(tmp_path / "model.npz")
    run = CliRunner().invoke(sample_command, [table, "--on", "cpu", "--repeats", "1"])
    assert run.exit_code == 0, run.output
    fitted = CliRunner().invoke(fit, [table, model, "--fallback", "native"])
    assert fitted.exit_code == 0, fitted.output
    assert "gemm/fp32" in fitted.output
