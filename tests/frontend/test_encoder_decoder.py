"""Encoders in front of decoders: parameters of published ones, training, serving, and what is refused."""

import json
from typing import Any

import pytest

from rapid_des.config import to_tree
from rapid_des.errors import ConfigError
from rapid_des.frontend import load_job, memory
from rapid_des.importers.hugging_face import import_hugging_face
from rapid_des.machine import load_machine
from rapid_des.simulation import simulate

T5 = {
    "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_ff": 2048, "d_kv": 64,
    "d_model": 512, "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1,
    "feed_forward_proj": "relu", "initializer_factor": 1.0, "is_encoder_decoder": True,
    "layer_norm_epsilon": 1e-06, "n_positions": 512, "num_heads": 8, "num_layers": 6, "output_past": True,
    "pad_token_id": 0, "relative_attention_num_buckets": 32, "use_cache": True, "vocab_size": 32128,
}  # fmt: skip
T5_11B = T5 | {"d_ff": 65536, "d_kv": 128, "d_model": 1024, "num_heads": 128, "num_layers": 24}
FLAN_XL = T5 | {
    "d_ff": 5120, "d_model": 2048, "feed_forward_proj": "gated-gelu", "num_decoder_layers": 24,
    "num_heads": 32, "num_layers": 24, "tie_word_embeddings": False, "dense_act_fn": "gelu_new",
    "is_gated_act": True, "relative_attention_max_distance": 128,
}  # fmt: skip
SIGLIP = {
    "model_type": "siglip", "initializer_factor": 1.0,
    "text_config": {"model_type": "siglip_text_model"},
    "vision_config": {"model_type": "siglip_vision_model"},
}  # fmt: skip
SO400M = {
    "model_type": "siglip_vision_model", "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304,
    "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": False,
}  # fmt: skip
GEMMA3 = {
    "model_type": "gemma3", "boi_token_index": 255999, "eoi_token_index": 256000,
    "image_token_index": 262144, "mm_tokens_per_image": 256, "vision_config": SO400M,
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
        "num_hidden_layers": 34, "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    },
}  # fmt: skip
LLAVA: dict[str, Any] = {
    "model_type": "llava", "ignore_index": -100, "image_token_index": 32000, "pad_token_id": 32001,
    "projector_hidden_act": "gelu", "tie_word_embeddings": False, "vision_feature_layer": -2,
    "vision_feature_select_strategy": "default",
    "text_config": {
        "model_type": "llama", "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "vocab_size": 32064,
    },
    "vision_config": {
        "model_type": "clip_vision_model", "hidden_size": 1024, "image_size": 336, "intermediate_size": 4096,
        "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14, "projection_dim": 768,
        "vocab_size": 32000,
    },
}  # fmt: skip
PALIGEMMA = {
    "model_type": "paligemma", "hidden_size": 2048, "ignore_index": -100, "image_token_index": 257152,
    "pad_token_id": 0, "projection_dim": 2048,
    "text_config": {
        "model_type": "gemma", "hidden_size": 2048, "intermediate_size": 16384, "num_attention_heads": 8,
        "num_hidden_layers": 18, "num_image_tokens": 256, "num_key_value_heads": 1, "vocab_size": 257216,
    },
    "vision_config": {
        "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304,
        "num_attention_heads": 16, "num_hidden_layers": 27, "num_image_tokens": 256, "patch_size": 14,
        "projection_dim": 2048, "projector_hidden_act": "gelu_fast", "vision_use_head": False,
    },
}  # fmt: skip


def imported(tmp_path, stated, tower=None):
    (tmp_path / "config.json").write_text(json.dumps(stated))
    return import_hugging_face(tmp_path, tower=tower).model


@pytest.mark.parametrize(
    ("stated", "tower", "parameters"),
    [
        (T5, None, 60_506_624),
        (T5_11B, None, 11_307_321_344),
        (FLAN_XL, None, 2_849_757_184),
        (SIGLIP, "vision", 92_884_224),
        (SIGLIP, "text", 203_155_970 - 92_884_224 - 2),  # the loss has two parameters
        (SO400M, None, 416_866_032),
        (GEMMA3, "both", 4_300_079_472),
        (LLAVA, "both", 7_063_427_072),
        (PALIGEMMA, "both", 2_923_466_480),
    ],
)
def test_parameters_are_those_of_the_published_checkpoints(tmp_path, stated, tower, parameters):
    assert imported(tmp_path, stated, tower).parameters == parameters


def job(tmp_path, stated, split, tower=None, **section):
    phase = "training" if "global_batch" in section else "inference"
    model = to_tree(imported(tmp_path, stated, tower).spec, "model")
    return load_job({"model": model, "phase": phase, "parallelism": split, phase: section})


def t5_training(tmp_path, split, **changes):
    sizes = {"global_batch": 16, "micro_batch": 4, "sequence_length": 128, "source_length": 512}
    return job(tmp_path, T5, split, **sizes | changes)


@pytest.mark.parametrize("split", [{}, {"tp": 4, "sequence_parallel": True}, {"tp": 2, "dp": 2}], ids=str)
def test_t5_trains_and_each_rank_has_its_share_of_the_parameters(tmp_path, split):
    whole = t5_training(tmp_path, split)
    held, tp = memory(whole).stages[0].parameters, split.get("tp", 1)
    parameters = whole.model.parameters
    # Norms and biases of distances are whole on every rank: 1,024 and less a layer.
    assert parameters / tp <= held <= parameters / tp + 50_000
    assert tp > 1 or held == parameters
    result = simulate(whole, load_machine("dgx_a100"))
    names = {operator.name for operator in result.trace.operators}
    assert {"forward.encoder.L5.ffn.out", "backward.cross_attention.core"} <= names
    assert 0 < result.figures.mfu < 1


def test_flops_of_t5_are_those_of_both_stacks_and_of_attention_between_them(tmp_path):
    width, layers, long, short, batch = 512, 6, 512, 128, 16
    matrices = 4 * width**2 + 2 * width * 2048  # of an encoder's layer
    encoder = layers * long * (2 * matrices + 4 * long * width)
    own = 2 * matrices + 4 * width * (short + 1) // 2
    across = 4 * width**2 + 4 * long * width
    decoder = layers * (short * (own + across) + long * 4 * width**2)
    head = 2 * short * 32128 * width
    assert t5_training(tmp_path, {}).model_flops == 3 * batch * (encoder + decoder + head)


def test_serving_runs_the_encoder_once_and_keeps_its_keys(tmp_path):
    sizes = {"batch": 8, "prompt_length": 1, "output_length": 9, "source_length": 512}
    served = job(tmp_path, T5, {}, **sizes)
    result = simulate(served, load_machine("dgx_a100"))
    names = [operator.name for operator in result.trace.operators]
    assert any("encoder.L0.attention.qkv" in name for name in names)
    assert not any("encoder" in name for name in names if "decode" in name)
    # two tensors of 6 layers, 512 channels and 2 bytes: 512 positions of the source, 10 of the answer
    assert memory(served).stages[0].categories["kv_cache"] == 8 * 2 * 6 * 512 * 2 * (512 + 10)
    longer = job(tmp_path, T5, {}, **sizes | {"source_length": 4096})
    assert simulate(longer, load_machine("dgx_a100")).step_time > result.step_time


@pytest.fixture
def small(tmp_path):
    """A LLaVA of two layers."""
    text = LLAVA["text_config"] | {"num_hidden_layers": 2}
    vision = LLAVA["vision_config"] | {"num_hidden_layers": 2}
    stated = LLAVA | {"text_config": text, "vision_config": vision}
    sizes = {"global_batch": 8, "micro_batch": 2, "sequence_length": 1024, "images": 1}
    return lambda split=(), **changes: job(tmp_path, stated, dict(split), "both", **sizes | changes)


@pytest.mark.parametrize("split", [{}, {"tp": 2}, {"pp": 2}, {"dp": 2}], ids=str)
@pytest.mark.parametrize("zero_stage", [1, 3])
def test_vision_language_training_counts_its_parameters_on_every_split(small, split, zero_stage):
    whole = small(split, zero_stage=zero_stage)
    held = sum(stage.parameters for stage in memory(whole).stages)
    assert split == {"tp": 2} or held == whole.model.parameters
    assert simulate(whole, load_machine("dgx_a100")).step_time > 0


def test_a_frozen_encoder_saves_its_backward_its_gradients_and_its_optimizer(small):
    trained, frozen = small(), small(frozen_encoder=True)
    machine = load_machine("dgx_a100")
    results = {name: simulate(each, machine) for name, each in (("all", trained), ("frozen", frozen))}
    assert results["frozen"].step_time < results["all"].step_time
    names = {operator.name for operator in results["frozen"].trace.operators}
    assert "backward.projector.0.weight_gradient" in names
    assert not any(name.startswith("backward.encoder") for name in names)
    less = [memory(each).stages[0].categories["optimizer"] for each in (trained, frozen)]
    tower = trained.model.encoder.parameters
    assert less[0] - less[1] == 12 * tower  # master weights and two moments of 4 bytes each
    assert memory(frozen).stages[0].parameters == memory(trained).stages[0].parameters


def test_an_image_takes_its_tokens_of_the_sequence(small):
    source = small(images=1).spec.source
    assert (source.length, source.taken) == (577, 576)
    with pytest.raises(ConfigError, match="they take 1152 of the 1024 tokens"):
        small(images=2)


def test_a_hierarchical_step_is_as_long_as_a_flattened_one(small):
    machine = load_machine("dgx_a100")
    flat, folded = (simulate(small({"tp": 2}), machine, mode=mode) for mode in ("flattened", "hierarchical"))
    assert abs(int(flat.step_time) - int(folded.step_time)) <= int(flat.step_time) // 200


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"source_length": None}, r"training.source_length: must be there"),
        ({"source_length": 2**21}, r"training.source_length: 2,097,152; the encoder has"),
        ({"images": 1}, "has no encoder that reads them"),
        ({"frozen_encoder": True}, "has no encoder of images"),
        ({"adapters": {"rank": 8}}, "training.adapters: beside an encoder"),
    ],
)
def test_what_an_encoder_lacks_is_named(tmp_path, changes, problem):
    with pytest.raises(ConfigError, match=problem):
        t5_training(tmp_path, {}, **changes)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"prefill_tokens": 64}, "prefill_tokens: prompts .* not cut"),
        ({"batch": None, "requests": [{"prompt_length": length, "output_length": 2} for length in (1, 2)]},
         "requests: .* one kind"),
    ],
    ids=["cut", "kinds"],
)  # fmt: skip
def test_requests_to_an_encoder_are_whole_and_alike(tmp_path, changes, problem):
    sizes = {"batch": 8, "prompt_length": 1, "output_length": 9, "source_length": 512}
    stated = {key: value for key, value in (sizes | changes).items() if value is not None}
    if "requests" in changes:
        stated = {
            key: value for key, value in stated.items() if key not in ("prompt_length", "output_length")
        }
    with pytest.raises(ConfigError, match=problem):
        job(tmp_path, T5, {}, **stated)


def test_the_encoder_of_t5_alone_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="architectures: the encoder alone"):
        imported(tmp_path, T5 | {"architectures": ["T5EncoderModel"]})


def test_images_are_not_split_over_positions(small):
    with pytest.raises(ConfigError, match="sequence_parallel: true; allowed with an encoder of images"):
        small({"tp": 2, "sequence_parallel": True})


def test_t5_has_one_pipeline_stage(tmp_path):
    with pytest.raises(ConfigError, match=r"parallelism.pp: 2; allowed: 1"):
        t5_training(tmp_path, {"pp": 2})


def test_a_job_without_an_encoder_reads_no_source(tmp_path):
    with pytest.raises(ConfigError, match="llama2_7b has no encoder"):
        load_job("llama2_7b_train", settings={"training.source_length": 8})


def test_siglip_pools_positions_by_attention(tmp_path):
    sizes = {"global_batch": 16, "micro_batch": 16, "sequence_length": 196}
    whole = job(tmp_path, SIGLIP, {}, "vision", **sizes)
    assert memory(whole).stages[0].parameters == 92_884_224
    names = {operator.name for operator in simulate(whole, load_machine("dgx_a100")).trace.operators}
    assert {"forward.cross_attention.query", "backward.head.pooling.query_gradient"} <= names
