"""Images in prompts: who encodes them, how long that takes, and how long requests wait for it."""

import json
from typing import Any

import numpy as np
import pytest

from rapid_des.errors import ConfigError
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.serving.images import EncoderPool, ImageEncoder
from rapid_des.serving.server import serve
from rapid_des.simulation import step_time
from rapid_des.units import PS_PER_S

VIT = {
    "vocabulary": 1000, "hidden": 768, "layers": 2, "max_positions": 197, "position": "learned",
    "norm": "layer_norm", "patches": {"size": 16, "image": 224}, "tied_embeddings": False,
    "attention": {"heads": 12, "causal": False}, "feed_forward": {"hidden": 3072, "activation": "gelu"},
}  # fmt: skip
SERVED = {"batch": 1, "prompt_length": 197, "output_length": 1}


@pytest.fixture(scope="module")
def machine():
    return load_machine("dgx_a100")


@pytest.fixture(scope="module")
def vit():
    return load_job({"model": VIT, "phase": "inference", "inference": SERVED, "software": "vllm-0.x"})


def asked(tmp_path, images="{count: 1}", **settings):
    """Return a job of a small model whose requests have images."""
    (tmp_path / "vit.json").write_text(json.dumps({"model": VIT, "phase": "inference", "inference": SERVED}))
    stated = {
        "model.layers": 2,
        "serving.images": f"{{job: {tmp_path / 'vit.json'}, tokens: 196, {images[1:]}",
    }
    return load_job("llama2_7b_inference", settings=stated | settings)


def test_images_take_as_long_as_a_static_batch_of_as_many(vit, machine):
    encoder = ImageEncoder(vit, machine)
    at = {
        count: step_time(load_job(vit, settings={"inference.batch": count}), machine)
        for count in (1, 4, 8, 64)
    }
    assert [encoder.time(count) for count in at] == list(at.values())
    assert encoder.time(6) == (at[4] + at[8]) // 2
    assert encoder.time(128) == 2 * at[64]
    assert ImageEncoder(vit, machine, beside=4).time(16) == at[4]  # four a GPU


def test_encoders_take_one_request_after_the_other(vit, machine):
    encoder = ImageEncoder(vit, machine)
    pool, once = EncoderPool(encoder, 2), encoder.time(1)
    assert [pool.time(0, 1) for _ in range(4)] == [once, once, 2 * once, 2 * once]
    assert pool.time(5 * once, 1) == once


def test_an_image_adds_its_tokens_to_the_prompt_and_its_time_to_the_first_token(tmp_path, machine):
    alone = load_job("llama2_7b_inference", settings={"model.layers": 2})
    keys: dict[str, Any] = {"arrivals": "constant rate=1/s", "requests": 3, "output": "2"}
    text = serve(alone, machine, prompt="296", **keys)
    job = asked(tmp_path)
    seen = serve(job, machine, prompt="100", **keys)
    assert (seen.requests["prompt"] == 296).all()
    encoder = ImageEncoder(load_job(tmp_path / "vit.json"), machine)
    assert (seen.prefill - text.prefill == encoder.time(1)).all()
    # on GPUs of their own it is before the queue, and the first token is as late
    apart = serve(asked(tmp_path, "{encoders: 1}"), machine, prompt="100", **keys)
    assert (apart.requests["encoding"] == encoder.time(1)).all() and (apart.prefill == text.prefill).all()
    assert (apart.ttft == seen.ttft).all() and apart.gpus == seen.gpus + 1
    assert "encoders of images" in str(apart)


def test_a_share_of_requests_has_images_of_drawn_numbers(tmp_path, machine):
    job = asked(tmp_path, '{share: 0.5, count: "uniform low=1 high=4"}')
    result = serve(job, machine, prompt="100", output="1", arrivals="constant rate=100/s", requests=200)
    images = (result.requests["prompt"] - 100) / 196
    assert set(np.unique(images)) == {0, 1, 2, 3, 4} and 70 < (images > 0).sum() < 130
    assert result.elapsed < 10 * PS_PER_S


@pytest.mark.parametrize(
    ("images", "settings", "problem"),
    [
        ("{encoders: 9}", {}, "the machine has 8"),
        ("{count: 1}", {"serving.sessions": 4}, "prompts of sessions"),
        ("{count: none}", {}, "serving.images.count"),
    ],
)
def test_images_that_can_not_be_are_refused(tmp_path, machine, images, settings, problem):
    with pytest.raises(ConfigError, match=problem):
        serve(asked(tmp_path, images, **settings), machine, arrivals="constant rate=1/s", requests=2)


def test_an_encoder_reads_images(machine):
    job = load_job(
        "llama2_7b_inference", settings={"serving.images": "{job: llama2_7b_inference, tokens: 9}"}
    )
    with pytest.raises(ConfigError, match="states no `patches`"):
        serve(job, machine, arrivals="constant rate=1/s", requests=2)
