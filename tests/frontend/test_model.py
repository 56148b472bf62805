"""Parameter counts equal the published ones; a model file that does not fit together is refused."""

from typing import Any

import pytest

from rapid_des.config import preset_names
from rapid_des.errors import ConfigError
from rapid_des.frontend import load_model
from rapid_des.frontend.layers.transformer import causal_flops


def preset(name, tmp_path):
    return load_model(name, folder=tmp_path)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # The published checkpoints' tensors, summed.
        ("llama2_7b", 6_738_415_616),
        ("llama2_13b", 13_015_864_320),
        ("llama2_70b", 68_976_648_192),
        ("llama3_1_8b", 8_030_261_248),
        ("llama3_1_70b", 70_553_706_496),
        ("llama3_1_405b", 405_853_388_800),
    ],
)
def test_llama_parameters_equal_the_published_checkpoints(tmp_path, name, parameters):
    assert preset(name, tmp_path).parameters == parameters


@pytest.mark.parametrize(
    ("name", "hidden", "layers", "billions"),
    [
        ("megatron_gpt_22b", 6144, 48, 22),
        ("megatron_gpt_175b", 12288, 96, 175),
        ("megatron_gpt_310b", 16384, 96, 310),
        ("megatron_gpt_530b", 20480, 105, 530),
        ("megatron_gpt_1t", 25600, 128, 1008),
    ],
)
def test_megatron_parameters_follow_the_papers_formula(tmp_path, name, hidden, layers, billions):
    # Narayanan et al. 2021, eq. 2: P = 12·l·h²·(1 + 13/(12·h) + (V + s)/(12·l·h)); without the last norm.
    formula = 12 * layers * hidden**2 + 13 * layers * hidden + (51200 + 2048) * hidden
    assert preset(name, tmp_path).parameters == formula + 2 * hidden
    assert round(formula / 1e9) == pytest.approx(billions, abs=1)


def test_gpt3_counts_what_brown_et_al_print(tmp_path):
    # 12·96·12288² + 13·96·12288 + (50257 + 2048)·12288 + 2·12288: "175.0B" in Table 2.1, 174.6e9 exactly.
    assert preset("gpt3_175b", tmp_path).parameters == 174_604_259_328


def test_model_flops_follow_the_papers_formula_but_for_what_a_causal_mask_leaves_out(tmp_path):
    # Narayanan et al. 2021, eq. 3, forward only: 24·B·s·l·h²·(1 + s/(6h) + V/(12·l·h)), B = 4.
    model = preset("megatron_gpt_22b", tmp_path)
    tokens, s, layers, h, vocabulary = 4 * 2048, 2048, 48, 6144, 51200
    formula = (
        24 * tokens * layers * h * h + 4 * tokens * (s + 1) // 2 * layers * h + 2 * tokens * vocabulary * h
    )
    assert model.forward_flops(4, range(1, s + 1), logits=tokens) == formula


def test_every_preset_loads(tmp_path):
    assert len(preset_names("model")) >= 12
    for name in preset_names("model"):
        assert preset(name, tmp_path).name == name


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("attention: {heads: 3}", "hidden 64 is not divisible by 3 heads"),
        ("attention: {heads: 4, kv_heads: 3}", "4 heads do not divide by 3 kv_heads"),
        ("attention: {head: 4}", "did you mean 'heads'"),
        ("attention: {heads: 0}", "attention.heads"),
    ],
)
def test_a_model_that_does_not_fit_together_is_refused(tmp_path, line, said):
    rest = "\n".join(
        [
            "hidden: 64",
            "layers: 2",
            "feed_forward: {activation: gelu, hidden: 128}",
            "norm: layer_norm",
            "position: learned",
            "vocabulary: 100",
            "max_positions: 64",
            "tied_embeddings: true",
        ]
    )
    path = tmp_path / "m.yaml"
    path.write_text(f"{line}\n{rest}\n")
    with pytest.raises(ConfigError, match="m.yaml") as refused:
        load_model(path)
    assert said in str(refused.value)


def test_model_flops_stop_at_a_window():
    # With a window of 3 the positions 1 to 5 see 1, 2, 3, 3 and 3 positions.
    class Windowed:
        def flops(self, sequence):
            return 10 + 4 * min(sequence, 3)

    windowed: Any = Windowed()
    assert causal_flops(windowed.flops, range(1, 6)) == 5 * 10 + 4 * 12
    assert causal_flops(windowed.flops, range(5, 6)) == 10 + 4 * 3


@pytest.mark.parametrize("where", [{"start": 32}, {"start": 5, "stop": 3}, {"stop": 33}])
def test_exceptions_that_mean_no_layer_are_refused(where):
    with pytest.raises(ConfigError, match=r"exceptions: there are no layers \d+ to \d+ of 32"):
        load_model("llama2_7b", settings={"exceptions": [where]})
