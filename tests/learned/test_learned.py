import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapid_des.bounded_cache import BoundedCache
from rapid_des.device import Attention, Gemm, GroupedGemm, Vector, load_device
from rapid_des.device.pricing import operator_model
from rapid_des.errors import InputError
from rapid_des.learned import LeftOut, load_learned, shape_of, write_samples
from rapid_des.learned.fit import fit_decomposed, fit_file, fit_modules, fit_regressor
from rapid_des.learned.regressors import Forest
from rapid_des.report.devices import learned_as_plain, learned_report
from rapid_des.report.tables import text
from tests.device.prices import estimate_of

pytest.importorskip("sklearn")


def gemm_rows():
    """A GEMM of 10 us + 1 us for every 2^20 multiplications, over a grid of sizes."""
    for m in (64, 128, 256, 512):
        for n in (128, 256, 512):
            for k in (128, 256, 512):
                time = 10 + m * n * k / 2**20
                yield {"operator": "gemm/bf16", "m": m, "n": n, "k": k, "batch": 1, "time_us": time}


@pytest.fixture
def device_file(tmp_path):
    write_samples(tmp_path / "samples.csv", gemm_rows())
    fit_file(tmp_path / "samples.csv", fallback="native").save(tmp_path / "model.npz")
    path = tmp_path / "device.yaml"
    path.write_text("base: a100_sxm_80gb\nname: sampled\noperators: learned:model.npz\n")
    return path


def test_a_forest_walks_to_its_leaves():
    # One tree: feature 0 <= 1.5 gives 10, else 20; the scale of one half and the offset 1 give 6 and 11.
    forest = Forest(
        roots=np.array([0], np.int32),
        feature=np.array([0, -1, -1], np.int16),
        threshold=np.array([1.5, 0, 0]),
        left=np.array([1, 0, 0], np.int32),
        right=np.array([2, 0, 0], np.int32),
        value=np.array([0, 10, 20], np.float32),
        scale=0.5,
        offset=1.0,
    )
    assert forest.predict(np.array([[1.5], [1.6]])).tolist() == [6.0, 11.0]


@pytest.mark.parametrize("kind", ["random_forest", "extra_trees", "gradient_boosting"])
def test_our_trees_say_what_scikit_learn_says(kind):
    from sklearn import ensemble

    from rapid_des.learned.fit import TREES, _grow

    random = np.random.default_rng(0)
    rows, target = random.normal(size=(80, 3)), random.normal(size=80)
    classes = {
        "random_forest": ensemble.RandomForestRegressor,
        "extra_trees": ensemble.ExtraTreesRegressor,
        "gradient_boosting": ensemble.GradientBoostingRegressor,
    }
    theirs = classes[kind](**TREES[kind]).fit(rows, target).predict(rows)
    np.testing.assert_allclose(_grow(rows, target, kind).predict(rows), theirs, atol=1e-5)


def test_a_power_law_is_learned_between_the_samples():
    # time = m * k: the trend alone is exact, so a size between the samples is priced right.
    sizes = np.array([[m, k] for m in (1, 4, 16, 64) for k in (1, 4, 16, 64)], dtype=float)
    regressor = fit_regressor(sizes, sizes.prod(axis=1), ("m", "k"))
    assert regressor.predict(np.array([[8.0, 8.0]]))[0] == pytest.approx(64, rel=1e-3)


def test_the_file_gives_back_the_model_bit_for_bit(tmp_path):
    write_samples(tmp_path / "samples.csv", gemm_rows())
    file = fit_file(tmp_path / "samples.csv", fallback="roofline")
    for name in ("one.npz", "two.npz"):
        file.save(tmp_path / name)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    again = load_learned(tmp_path / "one.npz")
    sizes = np.array([[100.0, 300.0, 200.0, 1.0]])
    assert again.fallback == "roofline"
    assert again.regressors["gemm/bf16"].predict(sizes) == file.regressors["gemm/bf16"].predict(sizes)


def test_a_sampled_operator_is_priced_by_its_samples(device_file):
    # 256 x 256 x 256 = 2^24 multiplications: 10 + 16 us.
    estimate = estimate_of(load_device(str(device_file)), Gemm(256, 256, 256))
    assert estimate.duration == pytest.approx(26e6, rel=0.05)
    assert estimate.detail["model"] == "learned:model.npz"


def test_outside_the_samples_the_declared_model_answers(device_file):
    device = load_device(str(device_file))
    native = load_device("a100_sxm_80gb")
    for operator, why in (
        (Gemm(4096, 256, 256), "outside the sampled range"),
        (Vector("gelu", 8, 8), "no samples"),
    ):
        estimate = estimate_of(device, operator)
        assert estimate.duration == estimate_of(native, operator).duration
        assert estimate.detail["fallback"] == why


def test_a_model_tells_what_its_file_has_and_nothing_asked_for(device_file):
    operators: Any = operator_model(load_device(str(device_file)))
    assert operators.unused() == ("gemm/bf16",)
    operators.estimate(Gemm(256, 256, 256, dtype="fp16"))
    assert operators.unused() == ("gemm/bf16",)
    operators.estimate(Gemm(256, 256, 256))
    assert operators.unused() == ()


def test_a_model_tells_what_was_left_to_the_fallback_and_why(device_file):
    operators: Any = operator_model(load_device(str(device_file)))
    for operator in (
        Gemm(256, 256, 256),
        Gemm(4096, 256, 256),
        Vector("gelu", 8, 8),
        GroupedGemm((8, 8), 64, 64),
    ):
        operators.estimate(operator)
    assert operators.fallbacks() == {
        "gemm/bf16": "outside the sampled range",
        "gelu/forward/bf16": "no samples",
        "GroupedGemm": "no samples",
    }


def test_what_one_job_asked_for_is_not_held_against_the_next(device_file):
    memory, device = BoundedCache(1 << 24), load_device(str(device_file))
    first: Any = operator_model(device, memory)
    second: Any = operator_model(device, memory)
    price = first.estimate(Gemm(256, 256, 256))
    assert (first.unused(), second.unused()) == ((), ("gemm/bf16",))
    assert second.estimate(Gemm(256, 256, 256)) is price


def test_what_no_column_describes_is_not_sampled():
    assert shape_of(Attention(1, 8, 8, 4, 4, 64, window=4)) is None
    assert shape_of(Attention(1, 8, 8, 4, 4, 64)).name == "attention/forward/bf16/causal"


def test_too_few_samples_leave_the_operator_to_the_fallback(tmp_path):
    rows = list(gemm_rows())
    rows += [{"operator": "gelu/forward/bf16", "rows": 8, "columns": 8, "time_us": 3}]
    write_samples(tmp_path / "samples.csv", rows)
    file = fit_file(tmp_path / "samples.csv", fallback="native")
    assert file.left_out == {"gelu/forward/bf16": LeftOut(1, "a regressor needs 12 samples")}
    assert "left out: 1 samples" in "\n".join(text(learned_report(file)))
    json.dumps(learned_as_plain(file))


def test_another_table_is_read_by_its_own_columns(tmp_path):
    # 16 rows of b x l: time = b * l.
    lines = [
        "op,phase,b,l,us",
        *(f"linear,fwd,{b},{n},{b * n}" for b in (1, 2, 4, 8) for n in (16, 32, 64, 128)),
    ]
    (tmp_path / "other.csv").write_text("\n".join(lines) + "\n")
    file = fit_file(tmp_path / "other.csv", by="op,phase", sizes="b,l", time="us", fallback="native")
    assert file.regressors["linear/fwd"].predict(np.array([[2.0, 64.0]]))[0] == pytest.approx(128, rel=0.02)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no column 'operator'; needed: operator, time_us"),
        ("operator,m,time_us\n", "no rows in it"),
        ("op,time_us\ngemm,1\n", "no column 'operator'"),
        ("operator,m,time_us\ngemm/bf16,eight,1\n", "line 2: 'eight' is no number"),
        ("operator,time_us\ngemm/bf16,1\n", "none of the sizes"),
    ],
)
def test_a_table_that_can_not_be_read_is_named(tmp_path, text, told):
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(InputError, match=f"bad.csv: .*{told}"):
        fit_file(tmp_path / "bad.csv", fallback="native")


def test_a_damaged_model_file_is_named(tmp_path):
    (tmp_path / "model.npz").write_bytes(b"not a zip")
    with pytest.raises(InputError, match="model.npz: no file of learned operators"):
        load_learned(tmp_path / "model.npz")


def test_a_missing_model_file_is_named(tmp_path):
    with pytest.raises(InputError, match="there is no such file"):
        load_learned(tmp_path / "none.npz")


@pytest.mark.parametrize("kind", ["xgboost", "lightgbm"])
def test_boosted_trees_survive_the_flattening(kind):
    pytest.importorskip(kind)
    from rapid_des.learned.fit import grow_booster

    random = np.random.default_rng(0)
    rows = random.normal(size=(200, 3))
    target = rows[:, 0] ** 2 + rows[:, 1]
    assert np.mean(np.abs(grow_booster(rows, target, kind).predict(rows) - target)) < 0.15


def test_fit_prints_what_it_fitted(tmp_path):
    from click.testing import CliRunner

    from rapid_des.cli.device import fit

    write_samples(tmp_path / "samples.csv", gemm_rows())
    arguments = [str(tmp_path / "samples.csv"), str(tmp_path / "model.npz"), "--fallback", "native"]
    run = CliRunner().invoke(fit, arguments)
    assert run.exit_code == 0, run.output
    assert "gemm/bf16" in run.output
    plain = json.loads(CliRunner().invoke(fit, [*arguments, "--json", "--force"]).output)
    assert plain["operators"]["gemm/bf16"]["rows"] == 36


MODULES = [
    "linear1/fwd",
    "linear1/bwd",
    "bmm/fwd",
    "baddbmm/fwd",
    "ScaledUpperTriangMaskedSoftmax/fwd",
    "gelu/fwd",
]
MODULES += ["res_add/bwd", "fillmask/fwd", "firstStage_optimizer/step", "mystery/fwd"]
USED_BY = {"linear1/fwd": "gemm/fp16", "linear1/bwd": "gemm/fp16", "gelu/fwd": "gelu/forward/fp16"}
PARTS = {"bmm/fwd", "baddbmm/fwd", "ScaledUpperTriangMaskedSoftmax/fwd"}


@settings(max_examples=6, deadline=None)
@given(st.dictionaries(st.sampled_from(MODULES), st.sampled_from([1, 11, 12, 20]), min_size=1))
def test_every_sample_of_modules_is_used_or_named_with_its_reason(counts):
    # 1,200 rows of bmm were dropped in silence, as no other part of unfused attention stood beside them.
    rows = [
        {"op": name.partition("/")[0], "phase": name.partition("/")[2], "time_us": f"{10 + row}", "b": "1"}
        | {"l": f"{128 * (row + 1)}", "h": "8", "dim": "512", "mp": "1", "params": "1000"}
        for name, count in counts.items()
        for row in range(count)
    ]
    native = operator_model(load_device("a100_sxm_80gb"))
    file = fit_decomposed(rows, "drawn", native, fallback="native")
    for name, count in counts.items():
        if name in file.left_out:
            assert file.left_out[name].rows == count
            assert file.left_out[name].reason
        elif name in PARTS:
            assert "unfused_attention/forward/fp16/causal" in file.regressors
            assert min(counts.get(part, 0) for part in PARTS) >= 12
        else:
            assert file.regressors[USED_BY[name]].rows >= 12
    assert set(file.left_out) <= set(counts)
    plain: Any = learned_as_plain(file)
    assert set(plain["left_out"]) == set(plain["left_out_reasons"])
    printed = "\n".join(text(learned_report(file)))
    assert all(name in printed for name in file.left_out)


@pytest.mark.parametrize("cell", ["abc", "-5", "nan", "1e99", ""])
def test_a_time_of_modules_that_is_none_is_named_with_its_line(tmp_path, cell):
    table = tmp_path / "modules.csv"
    table.write_text(f"op,phase,b,l,h,dim,mp,time_us\nlinear1,fwd,1,8,1,64,1,{cell}\n")
    with pytest.raises(InputError, match=r"modules\.csv: line 2: .* is no number; allowed: 0 to"):
        fit_modules(table, "a100_sxm_80gb", fallback="native")


def test_a_sample_of_modules_without_a_size_is_refused():
    rows = [{"op": "linear1", "phase": "fwd", "time_us": "3", "b": "1", "dim": "64"}]
    native = operator_model(load_device("a100_sxm_80gb"))
    with pytest.raises(InputError, match="would have sizes m 0, n 192, k 64, batch 1"):
        fit_decomposed(rows, "drawn", native, fallback="native")
