"""Pools of keys and values against published start-ups of engines."""

import pytest

from rapid_des.device import load_device
from rapid_des.frontend import load_job
from rapid_des.frontend.memory import kv_capacity

# vLLM 0.19 and 0.28 (github.com/casys-kaist/LLMServingSim, bench/**/meta.json): num_gpu_blocks of 16 tokens,
# and where two ranks share experts kv_cache_size_tokens of one, 605,104.
VLLM = [
    ("rtx_4090", "llama3_1_8b", 0.9, 256, 1, 2_588),
    ("rtx_pro_6000", "llama3_1_8b", 0.92, 128, 1, 35_913),
    ("rtx_pro_6000", "qwen3_30b_a3b", 0.92, 128, 2, 605_104 // 16),
]


@pytest.mark.parametrize(("device", "model", "share", "sequences", "ranks", "pages"), VLLM)
def test_the_pool_has_as_many_pages_as_vllm_printed(device, model, share, sequences, ranks, pages):
    pool = {"share": share, "of": "used", "page": 16, "tokens": 2048, "sequences": sequences, "sampling": 38}
    job = {
        "model": model,
        "phase": "inference",
        "software": "vllm-0.12",
        "parallelism": {"dp": ranks, "ep": ranks},
        "memory": {"kv_pool": pool},
        "inference": {"batch": 1, "prompt_length": 1024, "output_length": 2},
    }
    found = kv_capacity(load_job(job), int(load_device(device).spec.hbm.capacity))
    assert found.pages == pytest.approx(pages, rel=0.03)
