"""Configs of published checkpoints come out with as many parameters as these have; the unknown is named.

The configs are those of the models' Hugging Face pages, without what no model file says; the counts are the
sums of the checkpoints' tensors that the same pages print.
"""

import json
from typing import Any

import pytest

from rapid_des.errors import ConfigError
from rapid_des.frontend import load_model
from rapid_des.importers.hugging_face import import_hugging_face
from rapid_des.importers.keys import spread

LLAMA_3_1_8B = dict(
    model_type="llama", hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
    intermediate_size=14336, vocab_size=128256, max_position_embeddings=131072, hidden_act="silu",
    attention_bias=False, mlp_bias=False, tie_word_embeddings=False, rms_norm_eps=1e-5, rope_theta=5e5,
)  # fmt: skip
GPT_OSS_20B = dict(
    model_type="gpt_oss", attention_bias=True, head_dim=64, hidden_act="silu", hidden_size=2880,
    intermediate_size=2880, max_position_embeddings=131072, num_attention_heads=64, num_experts_per_tok=4,
    layer_types=["sliding_attention", "full_attention"] * 12, num_hidden_layers=24, num_key_value_heads=8,
    num_local_experts=32, sliding_window=128, tie_word_embeddings=False, vocab_size=201088,
    quantization_config={"quant_method": "mxfp4"},
)  # fmt: skip
QWEN3_30B_A3B = dict(
    model_type="qwen3_moe", attention_bias=False, decoder_sparse_step=1, head_dim=128, hidden_act="silu",
    hidden_size=2048, intermediate_size=6144, max_position_embeddings=40960, max_window_layers=48,
    mlp_only_layers=[], moe_intermediate_size=768, num_attention_heads=32, num_experts=128,
    num_experts_per_tok=8, num_hidden_layers=48, num_key_value_heads=4, sliding_window=None,
    tie_word_embeddings=False, use_sliding_window=False, vocab_size=151936,
)  # fmt: skip
DEEPSEEK_V3 = dict(
    model_type="deepseek_v3", first_k_dense_replace=3, hidden_act="silu", hidden_size=7168,
    intermediate_size=18432, kv_lora_rank=512, max_position_embeddings=163840, moe_intermediate_size=2048,
    moe_layer_freq=1, n_group=8, n_routed_experts=256, n_shared_experts=1, num_attention_heads=128,
    num_experts_per_tok=8, num_hidden_layers=61, num_key_value_heads=128, num_nextn_predict_layers=1,
    q_lora_rank=1536, qk_nope_head_dim=128, qk_rope_head_dim=64, scoring_func="sigmoid", topk_group=4,
    tie_word_embeddings=False, v_head_dim=128, vocab_size=129280, attention_bias=False,
)  # fmt: skip
MAMBA2_CODESTRAL = dict(
    model_type="mamba2", chunk_size=256, conv_kernel=4, expand=2, head_dim=64, hidden_act="silu",
    hidden_size=4096, n_groups=8, norm_before_gate=True, num_heads=128, num_hidden_layers=64, rms_norm=True,
    state_size=128, tie_word_embeddings=False, time_step_rank=256, use_bias=False, use_conv_bias=True,
    vocab_size=32768,
)  # fmt: skip
NEMOTRON_H_8B = dict(
    model_type="nemotron_h", attention_bias=False, attention_head_dim=128, chunk_size=128, conv_kernel=4,
    expand=2, hidden_size=4096, intermediate_size=21504, mamba_head_dim=64, mamba_hidden_act="silu",
    hybrid_override_pattern="M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-", mamba_num_heads=128,
    max_position_embeddings=8192, mlp_bias=False, mlp_hidden_act="relu2", mamba_proj_bias=False, n_groups=8,
    num_attention_heads=32, num_hidden_layers=52, num_key_value_heads=8, ssm_state_size=128, use_bias=False,
    tie_word_embeddings=False, use_conv_bias=True, vocab_size=131072,
)  # fmt: skip
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "mamba_codestral_7b": (MAMBA2_CODESTRAL, 7_285_403_648),
    "nemotron_h_8b": (NEMOTRON_H_8B, 8_100_852_736),
    "llama_3_1_8b": (LLAMA_3_1_8B, 8_030_261_248),
    "llama_3_2_1b": (
        LLAMA_3_1_8B
        | dict(hidden_size=2048, num_hidden_layers=16, head_dim=64, intermediate_size=8192)
        | dict(tie_word_embeddings=True),
        1_235_814_400,
    ),
    "mistral_7b": (
        LLAMA_3_1_8B
        | dict(model_type="mistral", vocab_size=32000, max_position_embeddings=32768, sliding_window=4096),
        7_241_732_096,
    ),
    "mixtral_8x7b": (
        LLAMA_3_1_8B
        | dict(model_type="mixtral", vocab_size=32000, sliding_window=None)
        | dict(num_local_experts=8, num_experts_per_tok=2),
        46_702_792_704,
    ),
    "qwen2_5_72b": (
        dict(
            model_type="qwen2", hidden_act="silu", hidden_size=8192, intermediate_size=29568,
            max_position_embeddings=131072, max_window_layers=80, num_attention_heads=64,
            num_hidden_layers=80, num_key_value_heads=8, sliding_window=131072, tie_word_embeddings=False,
            use_sliding_window=False, vocab_size=152064,
        ),
        72_706_203_648,
    ),
    "qwen1_5_moe_a2_7b": (
        dict(
            model_type="qwen2_moe", decoder_sparse_step=1, hidden_act="silu", hidden_size=2048,
            intermediate_size=5632, max_position_embeddings=8192, max_window_layers=21,
            moe_intermediate_size=1408, num_attention_heads=16, num_experts=60, num_experts_per_tok=4,
            num_hidden_layers=24, num_key_value_heads=16, shared_expert_intermediate_size=5632,
            sliding_window=32768, tie_word_embeddings=False, use_sliding_window=False, vocab_size=151936,
        ),
        14_315_784_192,
    ),
    "qwen3_8b": (
        dict(
            model_type="qwen3", attention_bias=False, head_dim=128, hidden_act="silu", hidden_size=4096,
            intermediate_size=12288, max_position_embeddings=40960, num_attention_heads=32,
            num_hidden_layers=36, num_key_value_heads=8, tie_word_embeddings=False, vocab_size=151936,
        ),
        8_190_735_360,
    ),
    "qwen3_30b_a3b": (QWEN3_30B_A3B, 30_532_122_624),
    "qwen3_235b_a22b": (
        QWEN3_30B_A3B
        | dict(hidden_size=4096, num_hidden_layers=94, num_attention_heads=64, intermediate_size=12288)
        | dict(moe_intermediate_size=1536),
        235_093_634_560,
    ),
    "deepseek_v2_lite": (
        DEEPSEEK_V3
        | dict(model_type="deepseek_v2", first_k_dense_replace=1, hidden_size=2048, intermediate_size=10944)
        | dict(moe_intermediate_size=1408, n_routed_experts=64, n_shared_experts=2, num_attention_heads=16)
        | dict(num_experts_per_tok=6, num_hidden_layers=27, num_key_value_heads=16, q_lora_rank=None)
        | dict(vocab_size=102400, num_nextn_predict_layers=None, scoring_func="softmax"),
        15_706_484_224,
    ),
    "deepseek_v3": (DEEPSEEK_V3, 671_026_419_200),
    "gpt2": (
        dict(
            model_type="gpt2", activation_function="gelu_new", n_ctx=1024, n_embd=768, n_head=12, n_layer=12,
            n_positions=1024, vocab_size=50257,
        ),
        124_439_808,
    ),
    "gpt_oss_20b": (GPT_OSS_20B, 20_914_757_184),
    "gpt_oss_120b": (
        GPT_OSS_20B
        | dict(layer_types=["sliding_attention", "full_attention"] * 18, num_hidden_layers=36)
        | dict(num_local_experts=128),
        116_829_156_672,
    ),
    "gpt_neox_20b": (
        dict(
            model_type="gpt_neox", hidden_act="gelu_fast", hidden_size=6144, intermediate_size=24576,
            max_position_embeddings=2048, num_attention_heads=64, num_hidden_layers=44, rotary_emb_base=10000,
            rotary_pct=0.25, tie_word_embeddings=False, vocab_size=50432,
        ),
        20_554_567_680,
    ),
    "pythia_12b": (
        dict(
            model_type="gpt_neox", hidden_act="gelu", hidden_size=5120, intermediate_size=20480,
            max_position_embeddings=2048, num_attention_heads=40, num_hidden_layers=36, rotary_pct=0.25,
            tie_word_embeddings=False, use_parallel_residual=True, vocab_size=50688,
        ),
        11_846_072_320,
    ),
    "opt_6_7b": (
        dict(
            model_type="opt", activation_function="relu", do_layer_norm_before=True, ffn_dim=16384,
            hidden_size=4096, max_position_embeddings=2048, num_attention_heads=32, num_hidden_layers=32,
            vocab_size=50272, word_embed_proj_dim=4096,
        ),
        6_658_473_984,
    ),
    "phi_2": (
        dict(
            model_type="phi", hidden_act="gelu_new", hidden_size=2560, intermediate_size=10240,
            max_position_embeddings=2048, num_attention_heads=32, num_hidden_layers=32,
            num_key_value_heads=32, partial_rotary_factor=0.4, qk_layernorm=False, tie_word_embeddings=False,
            vocab_size=51200,
        ),
        2_779_683_840,
    ),
    "phi_3_mini": (
        dict(
            model_type="phi3", attention_bias=False, hidden_act="silu", hidden_size=3072,
            intermediate_size=8192, max_position_embeddings=4096, num_attention_heads=32,
            num_hidden_layers=32, num_key_value_heads=32, original_max_position_embeddings=4096,
            sliding_window=2047, tie_word_embeddings=False, vocab_size=32064,
        ),
        3_821_079_552,
    ),
    "falcon_7b": (
        dict(
            model_type="falcon", alibi=False, bias=False, hidden_size=4544, multi_query=True,
            new_decoder_architecture=False, num_attention_heads=71, num_hidden_layers=32, parallel_attn=True,
            vocab_size=65024,
        ),
        6_921_720_704,
    ),
    "falcon_40b": (
        dict(
            model_type="falcon", alibi=False, bias=False, hidden_size=8192, new_decoder_architecture=True,
            num_attention_heads=128, num_hidden_layers=60, num_kv_heads=8, parallel_attn=True,
            vocab_size=65024,
        ),
        41_303_293_952,
    ),
    "command_r": (
        dict(
            model_type="cohere", attention_bias=False, hidden_act="silu", hidden_size=8192,
            intermediate_size=22528, logit_scale=0.0625, max_position_embeddings=8192,
            num_attention_heads=64, num_hidden_layers=40, num_key_value_heads=64, use_qk_norm=False,
            vocab_size=256000,
        ),
        34_980_831_232,
    ),
    "gemma_2b": (
        dict(
            model_type="gemma", attention_bias=False, head_dim=256, hidden_act="gelu", hidden_size=2048,
            intermediate_size=16384, max_position_embeddings=8192, num_attention_heads=8,
            num_hidden_layers=18, num_key_value_heads=1, vocab_size=256000,
        ),
        2_506_172_416,
    ),
    "gemma_2_27b": (
        dict(
            model_type="gemma2", attention_bias=False, attn_logit_softcapping=50.0,
            final_logit_softcapping=30.0, head_dim=128, hidden_act="gelu_pytorch_tanh",
            hidden_activation="gelu_pytorch_tanh", hidden_size=4608, intermediate_size=36864,
            max_position_embeddings=8192, num_attention_heads=32, num_hidden_layers=46,
            num_key_value_heads=16, query_pre_attn_scalar=144, sliding_window=4096, vocab_size=256000,
        ),
        27_227_128_320,
    ),
    "gemma_3_1b": (
        dict(
            model_type="gemma3_text", attention_bias=False, attn_logit_softcapping=None,
            final_logit_softcapping=None, head_dim=256, hidden_activation="gelu_pytorch_tanh",
            hidden_size=1152, intermediate_size=6912, max_position_embeddings=32768, num_attention_heads=4,
            num_hidden_layers=26, num_key_value_heads=1, query_pre_attn_scalar=256, sliding_window=512,
            sliding_window_pattern=6, vocab_size=262144,
        ),
        999_885_952,
    ),
    "glm_4_9b": (
        dict(
            model_type="glm", attention_bias=True, head_dim=128, hidden_act="silu", hidden_size=4096,
            intermediate_size=13696, max_position_embeddings=131072, num_attention_heads=32,
            num_hidden_layers=40, num_key_value_heads=2, partial_rotary_factor=0.5,
            tie_word_embeddings=False, vocab_size=151552,
        ),
        9_399_951_360,
    ),
    "glm_4_9b_0414": (
        dict(
            model_type="glm4", attention_bias=True, head_dim=128, hidden_act="silu", hidden_size=4096,
            intermediate_size=13696, max_position_embeddings=32768, num_attention_heads=32,
            num_hidden_layers=40, num_key_value_heads=2, partial_rotary_factor=0.5,
            tie_word_embeddings=False, vocab_size=151552,
        ),
        9_400_279_040,
    ),
    "olmo_2_7b": (
        dict(
            model_type="olmo2", attention_bias=False, hidden_act="silu", hidden_size=4096,
            intermediate_size=11008, max_position_embeddings=4096, num_attention_heads=32,
            num_hidden_layers=32, num_key_value_heads=32, tie_word_embeddings=False, vocab_size=100352,
        ),
        7_298_617_344,
    ),
    "olmo_7b": (
        dict(
            model_type="olmo", attention_bias=False, clip_qkv=None, hidden_act="silu", hidden_size=4096,
            intermediate_size=11008, max_position_embeddings=2048, num_attention_heads=32,
            num_hidden_layers=32, num_key_value_heads=32, tie_word_embeddings=False, vocab_size=50304,
        ),
        6_888_095_744,
    ),
    "gemma_3_4b": (  # the page prints all; 416,866,032 are of the vision tower, 2,950,272 of its projector
        dict(
            model_type="gemma3", boi_token_index=255999, eoi_token_index=256000, image_token_index=262144,
            mm_tokens_per_image=256, vision_config={"model_type": "siglip_vision_model"},
            text_config=dict(
                model_type="gemma3_text", hidden_size=2560, intermediate_size=10240, num_hidden_layers=34,
                rope_scaling={"factor": 8.0, "rope_type": "linear"}, sliding_window=1024,
            ),
        ),
        4_300_079_472 - 416_866_032 - 2_950_272,
    ),
    "glm_4_5_air": (  # the page prints 110,468,824,832 with the layer that predicts a further token
        dict(
            model_type="glm4_moe", attention_bias=True, first_k_dense_replace=1, head_dim=128,
            hidden_act="silu", hidden_size=4096, intermediate_size=10944, max_position_embeddings=131072,
            moe_intermediate_size=1408, n_group=1, n_routed_experts=128, n_shared_experts=1,
            norm_topk_prob=True, num_attention_heads=96, num_experts_per_tok=8, num_hidden_layers=46,
            num_key_value_heads=8, num_nextn_predict_layers=1, partial_rotary_factor=0.5,
            routed_scaling_factor=1.0, tie_word_embeddings=False, topk_group=1, use_qk_norm=False,
            vocab_size=151552,
        ),
        106_852_251_264,
    ),
    "granite_3_1b_a400m": (
        dict(
            model_type="granitemoe", attention_bias=False, hidden_act="silu", hidden_size=1024,
            intermediate_size=512, max_position_embeddings=4096, num_attention_heads=16,
            num_experts_per_tok=8, num_hidden_layers=24, num_key_value_heads=8, num_local_experts=32,
            tie_word_embeddings=True, vocab_size=49155,
        ),
        1_334_628_352,
    ),
    "smollm3_3b": (
        dict(
            model_type="smollm3", attention_bias=False, hidden_act="silu", hidden_size=2048,
            intermediate_size=11008, layer_types=["full_attention"] * 36, max_position_embeddings=65536,
            max_window_layers=28, mlp_bias=False, no_rope_layer_interval=4, no_rope_layers=[1, 1, 1, 0] * 9,
            num_attention_heads=16, num_hidden_layers=36, num_key_value_heads=4, sliding_window=None,
            tie_word_embeddings=True, use_sliding_window=False, vocab_size=128256,
        ),
        3_075_098_624,
    ),
    "olmoe_1b_7b": (
        dict(
            model_type="olmoe", attention_bias=False, clip_qkv=None, hidden_act="silu", hidden_size=2048,
            intermediate_size=1024, max_position_embeddings=4096, norm_topk_prob=False,
            num_attention_heads=16, num_experts=64, num_experts_per_tok=8, num_hidden_layers=16,
            num_key_value_heads=16, tie_word_embeddings=False, vocab_size=50304,
        ),
        6_919_161_856,
    ),
}  # fmt: skip


@pytest.fixture
def written(tmp_path):
    def write(config):
        (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path

    return write


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name, written):
    config, published = PUBLISHED[name]
    assert import_hugging_face(written(config)).model.parameters == published


def test_what_is_written_loads_to_the_same_model(written, tmp_path):
    for config, _ in PUBLISHED.values():
        imported = import_hugging_face(written(config))
        path = tmp_path / "model.yaml"
        path.write_text(imported.as_yaml())
        assert load_model(path).pattern == imported.model.pattern


def test_layers_are_as_the_config_has_them(written):
    assert import_hugging_face(written(GPT_OSS_20B)).model.kind_of_layer == (0, 1) * 12
    assert import_hugging_face(written(DEEPSEEK_V3)).model.kind_of_layer == (0,) * 3 + (1,) * 58
    sparse = QWEN3_30B_A3B | dict(decoder_sparse_step=2, mlp_only_layers=[3])
    assert import_hugging_face(written(sparse)).model.kind_of_layer[:6] == (0, 1, 0, 0, 0, 1)


def test_one_layer_of_four_of_smollm3_does_not_rotate(written):
    model = import_hugging_face(written(PUBLISHED["smollm3_3b"][0])).model
    assert model.kind_of_layer[:8] == (0, 0, 0, 1) * 2
    config = PUBLISHED["smollm3_3b"][0] | {"no_rope_layers": [1, 0]}
    with pytest.raises(ConfigError, match="no_rope_layers: must be a list of 36 layers"):
        import_hugging_face(written(config))


def test_of_gemma_3_the_text_model_is_read_and_what_is_left_out_named(written):
    config, _ = PUBLISHED["gemma_3_4b"]
    left = {each.key: each.reason for each in import_hugging_face(written(config)).ignored}
    assert left["vision_config.model_type"] == "the tower for images and its projector are left out"
    with pytest.raises(ConfigError, match=r"not understood: text_config.memory \(3\)"):
        import_hugging_face(written(config | {"text_config": config["text_config"] | {"memory": 3}}))


PRESETS = {
    "llama_3_1_8b": "llama3_1_8b", "llama_3_2_1b": "llama3_2_1b", "gemma_2_27b": "gemma2_27b",
    "gemma_3_4b": "gemma3_4b", "glm_4_9b": "glm4_9b", "olmo_2_7b": "olmo2_7b",
    **{name: name for name in (
        "mistral_7b", "mixtral_8x7b", "qwen2_5_72b", "qwen3_30b_a3b", "qwen3_235b_a22b", "gpt_oss_120b",
        "gpt_neox_20b", "deepseek_v2_lite", "deepseek_v3", "gpt2", "opt_6_7b", "phi_3_mini", "falcon_40b",
        "nemotron_h_8b",
    )},
}  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_the_configs(written, name):
    model, preset = import_hugging_face(written(PUBLISHED[name][0])).model, load_model(PRESETS[name])
    assert model.pattern == preset.pattern
    assert model.parameters == preset.parameters


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model_type": "rwkv"}, "model_type: 'rwkv' is not understood; allowed: llama, "),
        ({"memory_layers": 3, "new": {"a": 1}}, r"not understood: memory_layers \(3\), new \("),
        ({"hidden_act": "relu"}, "hidden_act: 'relu' is not understood; allowed: silu, swish"),
        ({"hidden_size": "4096"}, "hidden_size: '4096' is no int"),
        ({"mlp_bias": 1}, "mlp_bias: 1 is no bool"),
        ({"num_hidden_layers": None}, "the key 'num_hidden_layers' is missing"),
        ({"num_attention_heads": 33, "num_key_value_heads": 3}, "is not divisible by 33 heads"),
    ],
)
def test_what_is_not_understood_is_named(written, changed, said):
    with pytest.raises(ConfigError, match=said) as refused:
        import_hugging_face(written(LLAMA_3_1_8B | changed))
    assert refused.value.exit_code == 2


def test_what_a_model_file_does_not_say_is_noted(written):
    imported = import_hugging_face(written(DEEPSEEK_V3 | {"quantization_config": {"fmt": "e4m3"}}))
    assert [note.partition(":")[0] for note in imported.notes] == ["num_nextn_predict_layers"]
    (formats,) = (each for each in imported.ignored if each.key == "quantization_config.fmt")
    assert (formats.value, formats.reason) == ("e4m3", "formats are the job's (precision), not the model's")
    assert imported.model.spec.predictions == 1


def test_what_a_config_leaves_out_is_as_in_the_architectures_own_code(written):
    def first(config):
        return import_hugging_face(written(config)).model.pattern[0].mixer

    def without(name, *keys):
        return {key: value for key, value in PUBLISHED[name][0].items() if key not in keys}

    assert first(without("mistral_7b", "sliding_window")).core.window == 4096
    assert first(PUBLISHED["mistral_7b"][0] | {"sliding_window": None}).core.window is None
    assert first(without("gemma_2_27b", "attn_logit_softcapping")).core.softcap
    assert not first(PUBLISHED["gemma_2_27b"][0] | {"attn_logit_softcapping": None}).core.softcap
    assert first(without("glm_4_9b", "partial_rotary_factor")).rotary_dim == 64
    rope = {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.4}}
    assert first(without("phi_2", "partial_rotary_factor") | rope).rotary_dim == 32
    assert first(PUBLISHED["gpt_neox_20b"][0]).rotary_dim == 24


def test_numbered_layers_become_ranges():
    assert spread([2, 5, 8], 9) == [{"start": 2, "every": 3}]
    assert spread([2, 5], 9) == [{"start": 2, "stop": 6, "every": 3}]
    assert spread([0, 1, 4], 9) == [{"stop": 2}, {"start": 4, "stop": 5}]


def read(path):
    return import_hugging_face(path).model.pattern


def test_models_that_read_images_have_the_text_model_of_their_family(written):
    tower, tokens = {"depth": 27}, dict(image_token_id=1, video_token_id=2)
    moe = QWEN3_30B_A3B | {"model_type": "qwen3_vl_moe_text"}
    whole = dict(model_type="qwen3_vl_moe", text_config=moe, vision_config=tower, **tokens)
    assert read(written(whole)) == read(written(QWEN3_30B_A3B))
    stated = dict(
        add_cross_attention=False, is_encoder_decoder=False, tie_encoder_decoder=False, pruned_heads={}
    )
    kimi = dict(model_type="kimi_k25", text_config=DEEPSEEK_V3 | stated, vision_config=tower)
    assert read(written(kimi | {"media_placeholder_token_id": 3})) == read(written(DEEPSEEK_V3))


def test_the_blocks_of_nemotron_3_are_spelt_out_or_letters(written):
    experts = dict(
        n_routed_experts=128, num_experts_per_tok=6, moe_intermediate_size=1856, n_shared_experts=1,
        moe_shared_expert_intermediate_size=3712, mamba_ssm_cache_dtype="float32", partial_rotary_factor=1.0,
    )  # fmt: skip
    letters = NEMOTRON_H_8B | experts | {"hybrid_override_pattern": "MEM*E", "num_hidden_layers": 5}
    spelt = {
        key: value
        for key, value in letters.items()
        if key not in ("hybrid_override_pattern", "num_hidden_layers")
    }
    words = ["mamba", "moe", "mamba", "attention", "moe"]
    assert read(written(spelt | {"layers_block_type": words})) == read(written(letters))
