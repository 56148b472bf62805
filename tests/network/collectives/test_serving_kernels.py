"""Serving engines' all-reduce and expert exchange: limits that can be worked out by hand."""

from __future__ import annotations

import pytest

from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import ConfigError, InputError
from rapid_des.network.collectives.libraries.nccl_fabric import load_fabric, with_registered_buffers
from rapid_des.network.collectives.libraries.nccl_network import nccl_time
from rapid_des.network.collectives.libraries.serving_kernels import (
    ExpertExchange,
    all_reduce_cost,
    all_reduce_time,
    hybrid_time,
    load_kernels,
    low_latency_time,
    normal_time,
)
from rapid_des.values import replace

KIB, MIB = 2**10, 2**20
TOKENS = ExpertExchange(tokens=4096, hidden=7168, topk=8, experts=256, nodes=1, per_node=8, element_bytes=1)


def test_small_all_reduces_are_one_shot_and_large_ones_are_ncclss():
    kernels = load_kernels("a100")
    kernel = kernels.all_reduce["vllm"]
    # one-shot of 64 KiB among 8: 7 buffers over one GPU's links
    wire = 7 * 65536 / kernel.link * 1e12
    assert all_reduce_time(kernels, "vllm", 8, 65536) == pytest.approx(kernel.base + 7 * kernel.rank + wire)
    large = kernel.limits_of(8).below
    nccl = nccl_time(load_fabric("a100_nvswitch"), CollectiveType.ALL_REDUCE, 8, large)
    assert all_reduce_time(kernels, "vllm", 8, large) == nccl.duration


def test_two_shot_takes_over_where_it_moves_less():
    kernels = load_kernels("a100")
    kernel = kernels.all_reduce["vllm"]
    # 2 MiB among 8: 2·7/8 of it and one more synchronisation, against 7 of it
    wire = 2 * 7 / 8 * 2**21 / kernel.link * 1e12
    expected = kernel.base + 7 * kernel.rank + kernel.second + wire
    assert all_reduce_time(kernels, "vllm", 8, 2**21) == pytest.approx(expected)


def test_two_shot_of_tensorrt_llm_0_9_takes_few_blocks_for_odd_rows():
    kernels = load_kernels("h100")
    kernel = kernels.all_reduce["trtllm-0.9"]
    # 128 tokens of 14,848 (Falcon 180B) among 8: 29 blocks of 1,024 threads with 16 bytes each, more than 24,
    # and 29 is prime: one block moves 2·7/8 of it. 8,192 make 16 blocks, which the links bind.
    size = 2 * 128 * 14848
    start = kernel.base + 7 * kernel.rank + kernel.second + kernel.blocks.block
    wire = 2 * 7 / 8 * size / kernel.blocks.rate * 1e12
    assert all_reduce_time(kernels, "trtllm-0.9", 8, size) == pytest.approx(start + wire)
    assert all_reduce_time(kernels, "trtllm-0.9", 8, 2 * 128 * 8192) < wire / 5


@pytest.mark.parametrize(
    ("file", "engine", "ranks", "size", "serves"),
    [
        # vLLM's source: one-shot among two, below 512 KiB among four, below 256 KiB among eight
        ("a100", "vllm", 2, 4 * MIB, "one_shot"),
        ("a100", "vllm", 4, 512 * KIB - 16, "one_shot"),
        ("a100", "vllm", 4, 512 * KIB, "two_shot"),
        ("a100", "vllm", 8, 256 * KIB, "two_shot"),
        ("a100", "vllm", 8, 8 * MIB, None),
        # symmetric memory takes over at sizes that go by compute capability, and multicast by ranks
        ("h100", "vllm", 8, 256 * KIB, "nvls"),
        ("h100", "vllm", 2, 8 * MIB, "two_shot"),
        ("h100", "vllm", 8, 64 * MIB, None),
        ("nvlink5", "vllm", 4, 2 * MIB, "two_shot"),
        ("nvlink5", "vllm", 8, MIB, "nvls"),
        ("b300", "vllm", 8, MIB, "two_shot"),
        # SGLang's sizes are served too, and groups of three; vLLM leaves these to NCCL
        ("h100", "sglang", 8, 160 * KIB, "one_shot"),
        ("h100", "sglang", 8, 160 * KIB + 16, "two_shot"),
        ("h100", "sglang", 3, 16 * MIB, "two_shot"),
        ("h100", "vllm", 3, KIB, None),
        # TensorRT-LLM calls NCCL where there is no NVLink
        ("l40s", "trtllm", 2, KIB, None),
    ],
)
def test_engines_switch_kernels_where_their_source_says(file, engine, ranks, size, serves):
    cost = all_reduce_cost(load_kernels(file), engine, ranks, size)
    assert (cost.algorithm if cost else None) == serves


def test_symmetric_memory_needs_one_switch_at_all_ranks():
    kernels = load_kernels("h100")
    assert all_reduce_cost(kernels, "vllm", 8, MIB, switched=False) is None
    # its memory is read and written through the switch, 9/8 of it each way
    cost, memory = all_reduce_cost(kernels, "vllm", 8, MIB), kernels.all_reduce["vllm"].symmetric
    assert cost.duration == pytest.approx(memory.base + 9 / 8 * MIB / memory.multimem * 1e12)


def test_switches_reduce_registered_buffers_faster():
    plain = load_fabric("h100_nvswitch")
    fast = with_registered_buffers(plain)
    assert fast.node.nvls.link == plain.node.nvls.registered > plain.node.nvls.link
    assert with_registered_buffers(load_fabric("a100_nvswitch")) == load_fabric("a100_nvswitch")


def test_an_fp8_token_carries_scales_and_a_header():
    # 7168 B, 56 scales of 4 B, 16 B of header
    assert TOKENS.copy_bytes == 7168 + 224 + 16
    assert replace(TOKENS, element_bytes=2).copy_bytes == 14336 + 16


def test_expected_places_of_a_token():
    # 8 experts over 8 ranks fall on 8·(1 - (7/8)**8) = 5.25 of them
    assert TOKENS.distinct(8) == pytest.approx(5.2508, abs=1e-3)
    assert TOKENS.distinct(1) == 1


def test_low_latency_across_nodes_is_bound_by_the_nic():
    kernel = load_kernels("h100").low_latency["dispatch"]
    two = replace(TOKENS, nodes=2)
    # half of all copies leave the node
    wire = 4096 * 8 * TOKENS.copy_bytes / 2 / kernel.nic * 1e12
    start = kernel.base + 256 * kernel.expert + kernel.node
    assert low_latency_time(kernel, two) == pytest.approx(start + wire, rel=1e-6)


def test_more_multiprocessors_move_more():
    kernel = load_kernels("h100").normal["dispatch"]
    slow, fast = (normal_time(kernel, TOKENS, multiprocessors=count) for count in (10, 20))
    assert slow - kernel.base == pytest.approx(2 * (fast - kernel.base), rel=1e-6)


def test_hybrid_ep_leaves_in_place_what_stays():
    kernel = load_kernels("nvlink5").hybrid["dispatch"]
    # a token meets 8 (1 - (7/8)^8) of 8 ranks, one of them its own
    wire = 4096 * TOKENS.copy_bytes * 8 * (1 - (7 / 8) ** 8) * 7 / 8
    assert hybrid_time(kernel, TOKENS, multiprocessors=32) == pytest.approx(wire / kernel.link * 1e12)
    two = replace(TOKENS, nodes=2, per_node=1)
    far = 4096 * TOKENS.copy_bytes * 2 * (1 - 2.0**-8) / 2
    assert hybrid_time(kernel, two, multiprocessors=32) == pytest.approx(far / kernel.nic * 1e12)


def test_unknown_names_list_the_known():
    with pytest.raises(InputError, match="no all-reduce kernel of 'mpi'; allowed: vllm, sglang, trtllm"):
        all_reduce_time(load_kernels("a100"), "mpi", 8, 100)
    with pytest.raises(ConfigError, match="no file of serving kernels 'k80'; presets: a100, b300, h100"):
        load_kernels("k80")
