"""Vision transformers: parameters of published ones, what stands before and behind their layers, refusals."""

import json

import pytest

from rapid_des.config import to_tree
from rapid_des.errors import ConfigError
from rapid_des.frontend import load_job, load_model
from rapid_des.importers.hugging_face import import_hugging_face
from rapid_des.machine import load_machine
from rapid_des.serving.server import serve
from rapid_des.simulation import simulate


def config(hidden, layers, heads, inner, patch, image=224, labels=1000):
    return {
        "model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": inner,
        "patch_size": patch, "image_size": image, "num_channels": 3, "qkv_bias": True, "hidden_act": "gelu",
        "attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0, "layer_norm_eps": 1e-12,
        "initializer_range": 0.02, "encoder_stride": 16,
        "id2label": {str(number): f"LABEL_{number}" for number in range(labels)},
    }  # fmt: skip


BASE, LARGE = config(768, 12, 12, 3072, 16), config(1024, 24, 16, 4096, 16)
HUGE = config(1280, 32, 16, 5120, 14)
"""Of google/vit-base-patch16-224, vit-large-patch16-224 and vit-huge-patch14-224-in21k."""


DINO_V2 = {
    "model_type": "dinov2", "drop_path_rate": 0.0, "hidden_act": "gelu", "hidden_size": 768,
    "image_size": 518, "layer_norm_eps": 1e-6, "layerscale_value": 1.0, "mlp_ratio": 4,
    "num_attention_heads": 12, "num_channels": 3, "num_hidden_layers": 12, "patch_size": 14, "qkv_bias": True,
}  # fmt: skip
GIANT = {"hidden_size": 1536, "num_attention_heads": 24, "num_hidden_layers": 40, "use_swiglu_ffn": True}
DINO_V3 = {
    "model_type": "dinov3_vit", "hidden_act": "gelu", "hidden_size": 384, "image_size": 224,
    "intermediate_size": 1536, "key_bias": False, "layerscale_value": 1.0, "mlp_bias": True,
    "num_attention_heads": 6, "num_hidden_layers": 12, "num_register_tokens": 4, "patch_size": 16,
    "pos_embed_rescale": 2.0, "proj_bias": True, "query_bias": True, "rope_theta": 100.0,
    "use_gated_mlp": False, "value_bias": True,
}  # fmt: skip
SEVEN_B = {
    "hidden_size": 4096, "intermediate_size": 8192, "num_attention_heads": 32, "num_hidden_layers": 40,
    "hidden_act": "silu", "use_gated_mlp": True, "query_bias": False, "value_bias": False,
}  # fmt: skip


def imported(tmp_path, stated):
    (tmp_path / "config.json").write_text(json.dumps(stated))
    return import_hugging_face(tmp_path).model


@pytest.mark.parametrize(
    ("stated", "parameters"),
    [
        (BASE, 86_567_656),
        (LARGE, 304_326_632),
        (HUGE, 632_045_800),
        (DINO_V2, 86_580_480),
        (DINO_V2 | GIANT, 1_136_480_768),
        (DINO_V3, 21_596_544),
        (DINO_V3 | SEVEN_B, 6_716_035_072),
    ],
)
def test_parameters_are_those_of_the_published_checkpoints(tmp_path, stated, parameters):
    assert imported(tmp_path, stated).parameters == parameters


def model(tmp_path, **changes):
    return to_tree(imported(tmp_path, BASE).spec, "model") | changes


def training(tmp_path, split, **changes):
    return load_job(
        {
            "model": model(tmp_path),
            "phase": "training",
            "parallelism": split,
            "training": {"global_batch": 64, "micro_batch": 8, "sequence_length": 197} | changes,
        }
    )


def test_flops_are_those_of_all_pairs_of_positions(tmp_path):
    job = training(tmp_path, {})
    layer = 2 * (4 * 768**2 + 2 * 768 * 3072) + 4 * 197 * 768
    image = 197 * 12 * layer + 2 * 196 * 768 * 768 + 2 * 1000 * 768
    assert job.model_flops == 3 * 64 * image


@pytest.mark.parametrize("split", [{}, {"tp": 4}, {"tp": 2, "pp": 2, "dp": 2}, {"dp": 8}], ids=str)
def test_it_trains_on_any_split_and_its_parameters_are_counted_on_each_rank(tmp_path, split):
    job, machine = training(tmp_path, split), load_machine("dgx_a100")
    result = simulate(job, machine)
    assert result.as_json()["mfu_attention"] == "full"
    assert 0 < result.figures.mfu < 1
    names = {operator.name for operator in result.trace.operators}
    assert {"forward.embedding.patches", "backward.embedding.patches.weight_gradient"} <= names
    assert not any(name.endswith(".embedding") for name in names)


def test_the_head_reads_one_position_of_an_image(tmp_path):
    job, machine = training(tmp_path, {}), load_machine("dgx_a100")
    operators = {operator.name: operator for operator in simulate(job, machine).trace.operators}
    assert operators["forward.head"].flops == 2 * 8 * 768 * 1000
    assert operators["forward.embedding.patches"].flops == 2 * 8 * 196 * 768 * 768
    core = operators["forward.attention.core"].flops
    assert core >= 4 * 8 * 197**2 * 768  # of all pairs, not of half of them


def test_a_batch_of_images_is_one_pass_without_a_cache(tmp_path):
    served = {"batch": 64, "prompt_length": 197, "output_length": 1}
    job = load_job({"model": model(tmp_path), "phase": "inference", "inference": served})
    result = simulate(job, load_machine("dgx_a100"))
    assert result.figures.memory.fullest.categories.get("kv_cache", 0) == 0
    assert result.figures.kv_cache is None  # no pool holds any number of its tokens
    assert not any(operator.name.endswith("attention.cache") for operator in result.trace.operators)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"training": {"global_batch": 8, "micro_batch": 1, "sequence_length": 196}}, "has 197 positions"),
        ({"parallelism": {"cp": 2, "dp": 1}}, "cp.*causal mask"),
    ],
)
def test_jobs_that_images_can_not_have_are_refused(tmp_path, changes, problem):
    job = {
        "model": model(tmp_path), "phase": "training", "parallelism": {"dp": 2},
        "training": {"global_batch": 8, "micro_batch": 1, "sequence_length": 197},
    }  # fmt: skip
    with pytest.raises(ConfigError, match=problem):
        load_job(job | changes)


@pytest.mark.parametrize(
    ("served", "problem"),
    [
        ({"batch": 2, "prompt_length": 197, "output_length": 5}, "output_length.*allowed: 1"),
        ({"batch": 2, "prompt_length": 100, "output_length": 1}, "prompt_length.*has 197"),
    ],
)
def test_requests_that_images_can_not_be_are_refused(tmp_path, served, problem):
    with pytest.raises(ConfigError, match=problem):
        load_job({"model": model(tmp_path), "phase": "inference", "inference": served})


def test_an_encoder_is_no_server(tmp_path):
    served = {"batch": 2, "prompt_length": 197, "output_length": 1}
    job = load_job(
        {"model": model(tmp_path), "phase": "inference", "inference": served, "software": "vllm-0.x"}
    )
    with pytest.raises(ConfigError, match="model: .* is an encoder"):
        serve(job, load_machine("dgx_a100"), arrivals="poisson rate=1/s")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"max_positions": 300}, "max_positions 300: an image has 196 patches, behind 1"),
        ({"tied_embeddings": True}, "no table of tokens"),
        ({"patches": {"size": 15, "image": 224}}, "image 224 is not divisible by size 15"),
        ({"attention": {"heads": 12, "causal": False, "window": 8}}, "both sides"),
    ],
)
def test_models_that_can_not_be_are_refused(tmp_path, changes, problem):
    with pytest.raises(ConfigError, match=problem):
        load_model(model(tmp_path, **changes))


@pytest.mark.parametrize("stated", [DINO_V2 | {"image_size": 56}, DINO_V3], ids=["dinov2", "dinov3"])
def test_a_backbone_ends_with_its_norm_and_its_gains_learn(tmp_path, stated):
    model = imported(tmp_path, stated | {"num_hidden_layers": 2, "num_attention_heads": 6})
    positions, machine = model.spec.max_positions, load_machine("dgx_a100")
    tree = {"model": to_tree(model.spec, "model"), "phase": "training", "parallelism": {"tp": 2}}
    step = {"global_batch": 8, "micro_batch": 8, "sequence_length": positions}
    result = simulate(load_job(tree | {"training": step}), machine)
    names = [operator.name for operator in result.trace.operators]
    assert [name for name in names if ".head" in name] == ["forward.head.norm", "backward.head.norm"]
    gains = [name for name in names if name.endswith("layer_scale.gains")]
    assert gains == ["backward.ffn.layer_scale.gains", "backward.attention.layer_scale.gains"]
    served = {"model": tree["model"], "phase": "inference"}
    served["inference"] = {"batch": 4, "prompt_length": positions, "output_length": 1}
    assert 0 < simulate(load_job(served), machine).step_time < result.step_time


def test_a_model_without_a_head_is_one_of_images(tmp_path):
    with pytest.raises(ConfigError, match="vocabulary 0: only models of images"):
        load_model({**model(tmp_path, vocabulary=0, head_bias=False), "patches": None})


CLIP = {
    "model_type": "clip", "architectures": ["CLIPModel"], "logit_scale_init_value": 2.6592,
    "projection_dim": 512,
    "text_config": {
        "model_type": "clip_text_model", "hidden_act": "quick_gelu", "hidden_size": 512,
        "intermediate_size": 2048, "max_position_embeddings": 77, "num_attention_heads": 8,
        "num_hidden_layers": 12, "projection_dim": 512, "vocab_size": 49408,
    },
    "vision_config": {
        "model_type": "clip_vision_model", "hidden_act": "quick_gelu", "hidden_size": 768, "image_size": 224,
        "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12, "patch_size": 32,
    },
}  # fmt: skip
"""Of openai/clip-vit-base-patch32."""


def towers(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CLIP))
    return {tower: import_hugging_face(tmp_path, tower=tower).model for tower in ("text", "vision")}


def test_both_towers_of_clip_have_the_parameters_of_the_checkpoint(tmp_path):
    # 151,277,313 of CLIPModel, one of which scales the products of both towers' features
    assert sum(tower.parameters for tower in towers(tmp_path).values()) == 151_277_312
    with pytest.raises(ConfigError, match="clip has two towers; allowed: --tower text or --tower vision"):
        import_hugging_face(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CLIP["text_config"]))
    with pytest.raises(ConfigError, match="--tower text: clip_text_model has one tower"):
        import_hugging_face(tmp_path, tower="text")
    assert import_hugging_face(tmp_path).model.parameters == 63_428_096


def test_an_architecture_of_a_tower_alone_has_no_projection(tmp_path):
    wide = {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_attention_heads": 12,
        "projection_dim": 768,
    }  # others by default
    config = {
        "model_type": "clip_text_model",
        "architectures": ["CLIPTextModel"],
        "num_hidden_layers": 12,
        **wide,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = import_hugging_face(tmp_path).model
    # Stable Diffusion 1.5's: tables 49,408 x 768 and 77 x 768, 12 layers of 7,087,872, and a norm of 2 x 768
    assert model.parameters == 123_060_480 and not model.generates
    served = {"batch": 4, "prompt_length": 77, "output_length": 1}
    job = load_job({"model": to_tree(model.spec, "model"), "phase": "inference", "inference": served})
    result = simulate(job, load_machine("dgx_a100"))
    assert "head" not in {operator.name.rpartition(".")[2] for operator in result.trace.operators}
    assert result.figures.memory.fullest.categories["weights"] == 2 * model.parameters


@pytest.mark.parametrize("split", [{}, {"tp": 2, "dp": 2}, {"pp": 2}], ids=str)
def test_a_tower_ends_in_features_of_one_position_and_learns_all_its_parameters(tmp_path, split):
    machine = load_machine("dgx_a100")
    for tower, norms in (("text", []), ("vision", ["forward.embedding.norm"])):
        model = towers(tmp_path)[tower]
        tree = {"model": to_tree(model.spec, "model"), "parallelism": split}
        step = {"global_batch": 64, "micro_batch": 8, "sequence_length": model.spec.max_positions}
        job = load_job(tree | {"phase": "training", "training": step})
        trained = simulate(job, machine)
        operators = {operator.name: operator for operator in trained.trace.operators}
        if not split:  # two bytes a parameter
            assert trained.figures.memory.fullest.categories["weights"] == 2 * model.parameters
        assert operators["forward.head"].flops == 2 * 8 * model.spec.hidden * 512 // split.get("tp", 1)
        assert not any("loss" in name for name in operators)
        assert [name for name in operators if name == "forward.embedding.norm"] == norms
        served = {"batch": 4, "prompt_length": model.spec.max_positions, "output_length": 1}
        result = simulate(load_job(tree | {"phase": "inference", "inference": served}), machine)
        names = {operator.name.rpartition(".")[2] for operator in result.trace.operators}
        assert not names & {"sample", "cache"} and result.figures.kv_cache is None
        with pytest.raises(ConfigError, match="features 512 are not divisible by tp 3"):
            load_job(tree | {"parallelism": {"tp": 3}, "phase": "training", "training": step})
        with pytest.raises(ConfigError, match="features: stand in place of a head"):
            load_model(tree["model"] | {"logit_softcap": True})
        with pytest.raises(ConfigError, match="makes features and generates no tokens"):
            load_job(tree | {"phase": "inference", "inference": served | {"output_length": 2}})
