"""A device is a value: it travels, compares by content, and can be written back to its own file."""

import pickle
from fractions import Fraction

import pytest
from msgspec import structs

from rapid_des.config import preset_names
from rapid_des.device import Attention, Gemm, GroupedGemm, Vector, load_device
from rapid_des.device.operators import Operator
from rapid_des.device.pricing import operator_model
from rapid_des.values import replace

OPERATORS: list[Operator] = [
    Gemm(512, 4096, 4096),
    GroupedGemm((64, 0, 8), 4096, 4096),
    Attention(1, 2048, 2048, 32, 8, 128),
    Attention(1, 2048, 2048, 32, 32, 128, phase="backward"),
    Attention(8, 1, 8192, 32, 8, 128),
    Attention(1, 256, 256, 8, 8, 64, fused=False),
    Vector("rms_norm", 4096, 4096),
]


def test_a_device_travels_before_and_after_its_use():
    device = load_device("h100_sxm")
    before = pickle.loads(pickle.dumps(device))
    model = operator_model(device)
    prices = [model.estimate(operator) for operator in OPERATORS]
    after = pickle.loads(pickle.dumps(device))
    assert device == before == after
    assert hash(device) == hash(before) == hash(after)
    elsewhere = pickle.loads(pickle.dumps(model))
    assert [elsewhere.estimate(operator) for operator in OPERATORS] == prices


@pytest.mark.parametrize("name", preset_names("device"))
def test_every_preset_written_back_loads_to_an_equal_device(tmp_path, name):
    device = load_device(name)
    (tmp_path / "copy.yaml").write_text(device.as_yaml())
    assert load_device(str(tmp_path / "copy.yaml")) == device


def test_what_was_set_or_slowed_is_written_back_too(tmp_path):
    device = load_device("h100_sxm", settings=[("hbm.bandwidth", "0.333x"), ("conditions.l2", "warm")])
    slow = device.under(clock="sustained").slowed(compute=Fraction(7, 9), hbm=Fraction(1, 3))
    (tmp_path / "copy.yaml").write_text(slow.as_yaml())
    assert load_device(str(tmp_path / "copy.yaml")) == slow != device


def test_a_family_of_ones_own_is_written_back_with_the_device(tmp_path):
    device = load_device("h100_sxm")
    constants = {**device.family.constants, "memory": {"default": {"l2_share": 0.25}}}
    changed = replace(device, family=structs.replace(device.family, constants=constants))
    assert changed != device
    (tmp_path / "copy.yaml").write_text(changed.as_yaml())
    assert load_device(str(tmp_path / "copy.yaml")) == changed


def test_a_learned_device_written_back_elsewhere_finds_its_file(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "device.yaml").write_text("base: h100_sxm\noperators: learned:model.npz\n")
    device = load_device(str(tmp_path / "here" / "device.yaml"))
    (tmp_path / "copy.yaml").write_text(device.as_yaml())
    assert load_device(str(tmp_path / "copy.yaml")) == device
    assert device.spec.operators == f"learned:{tmp_path}/here/model.npz"


def test_every_estimate_names_the_model_that_priced_it():
    device = load_device("h100_sxm")
    native, roofline = operator_model(device), operator_model(device.priced_by("roofline"))
    assert [native.estimate(operator).model for operator in OPERATORS] == [
        "gemm",
        "grouped",
        "attention.flash",
        "attention.flash",
        "attention.decode",
        "attention.unfused",
        "vector",
    ]
    assert {roofline.estimate(operator).model for operator in OPERATORS} == {"roofline"}
