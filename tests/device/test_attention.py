import subprocess
import sys

import numpy as np
import pytest

from rapid_des.device import Attention, load_device
from rapid_des.device.attention.decode import shares_keys
from rapid_des.device.attention.flash import (
    INTERPRETED_BLOCKS,
    BlockScheduler,
    compiled,
    interpreted,
    key_tiles,
)
from rapid_des.device.spec import DecodePolicy
from rapid_des.errors import ConfigError, InputError
from tests.device.prices import estimate_of

A100 = load_device("a100_sxm_80gb")
H100 = load_device("h100_sxm")
PREFILL = Attention(4, 4096, 4096, heads=32, kv_heads=32, head_dim=128)


def makespan(*grid):
    return BlockScheduler().makespan(*grid)


def duration(attention, device=A100):
    return estimate_of(device, attention).duration


def with_(attention, **changes):
    from rapid_des.values import replace

    return replace(attention, **changes)


def test_blocks_on_one_sm_run_in_waves():
    # 5 equal blocks on 2 SMs of one place: 3 rounds of 2 s.
    assert makespan(np.array([2.0]), 5, 2, np.array([1.0])) == pytest.approx(6.0)


def test_blocks_that_share_an_sm_slow_each_other():
    # Two blocks of 2 s on one SM, each at half pace: both end at 4 s.
    assert makespan(np.array([2.0]), 2, 1, np.array([1.0, 0.5])) == pytest.approx(4.0)


def test_a_block_alone_again_runs_at_full_pace():
    # 1 s and 3 s together at pace 1/2: the first ends at 2 s, the other has 2 s of work left and is alone.
    assert makespan(np.array([1.0, 3.0]), 1, 1, np.array([1.0, 0.5])) == pytest.approx(4.0)


def test_long_grids_go_on_at_the_steady_rate():
    # 100,000 equal blocks on 8 places: 12,500 rounds of 1 s, simulated or not.
    assert makespan(np.array([1.0]), 100_000, 8, np.array([1.0])) == pytest.approx(12_500.0)


@pytest.mark.parametrize("seed", range(60))
def test_blocks_end_at_the_same_bit_interpreted_and_compiled(seed):
    random = np.random.default_rng(seed)
    equal = random.integers(1, 9, random.integers(1, 60)) * 1e-6  # many blocks end at once
    work = np.tile(equal + (seed % 2) * random.random(len(equal)) * 1e-7, random.integers(1, 40))
    pace = np.concatenate(([1.0], np.sort(random.random(random.integers(0, 4)))[::-1] + 0.1))
    sms = int(random.integers(1, 140))
    assert interpreted(work, sms, pace) == compiled(work, sms, pace)


def test_few_blocks_need_no_compiler():
    code = """
import sys, numpy as np
from rapid_des.device.attention.flash import BlockScheduler
BlockScheduler().makespan(np.ones(16), 1000, 108, np.ones(2))
assert "numba" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_many_blocks_go_on_compiled():
    scheduler, grid = BlockScheduler(), (np.ones(1), INTERPRETED_BLOCKS // 2, 8192, np.ones(1))
    # 30,000 blocks of 1 s on 8,192 SMs, whoever simulates them: 4 rounds.
    assert [scheduler.makespan(*grid) for _ in range(3)] == [4.0] * 3
    assert scheduler.blocks > INTERPRETED_BLOCKS


def test_causal_tiles_grow_by_the_query_tile():
    # Queries 0..63, 64..127, … see 64, 128, 192, 256 keys: 1, 2, 3, 4 tiles of 64.
    attention = Attention(1, 256, 256, 1, 1, 64)
    assert key_tiles(attention, 64, 64, 1).tolist() == [1, 2, 3, 4]


def test_a_window_bounds_the_tiles_of_each_query_tile():
    # Query tile 64..127 with window 64 sees keys 1..127: tiles 0 and 1; later ones two tiles each as well.
    attention = Attention(1, 256, 256, 1, 1, 64, window=64)
    assert key_tiles(attention, 64, 64, 1).tolist() == [1, 2, 2, 2]


def test_packed_heads_share_query_tiles():
    # 16 queries x 4 heads of a group are one tile of 64 rows that sees 16 keys.
    attention = Attention(1, 16, 16, heads=4, kv_heads=1, head_dim=64)
    assert key_tiles(attention, 64, 64, 4).tolist() == [1]


def test_a_paged_cache_is_read_in_whole_pages():
    assert Attention(1, 1, 17, 8, 8, 128, page_size=16).read_keys == 32


def test_causal_attention_skips_about_half_of_the_work():
    # Of 4,096 x 4,096 pairs 50.01 % are visible; the launch and half-filled tiles add a little.
    assert 0.45 < duration(PREFILL) / duration(with_(PREFILL, causal=False)) < 0.6


def test_four_times_the_queries_and_keys_take_almost_sixteen_times_as_long():
    # Sixteen times the pairs; the share of half-masked tiles and of starting blocks falls, 6 % of the time.
    ratio = duration(with_(PREFILL, query_length=16384, key_length=16384)) / duration(PREFILL)
    assert 14.5 < ratio < 16


def test_prefill_stays_below_the_tensor_peak():
    estimate = estimate_of(A100, with_(PREFILL, query_length=16384, key_length=16384))
    rate = estimate.flops / (estimate.duration * 1e-12)
    assert 0.4 * 312e12 < rate < 312e12
    assert estimate.bound == "tensor"


def test_the_backward_pass_has_five_products_to_the_forwards_two():
    forward = estimate_of(A100, PREFILL)
    backward = estimate_of(A100, with_(PREFILL, phase="backward"))
    assert backward.flops == forward.flops * 5 // 2
    assert 2.0 < backward.duration / forward.duration < 3.5


def test_a_sliding_window_costs_the_window_not_the_length():
    # 65,536 queries with window 4,096: 1/8 of the causal pairs (65,536^2 / 2).
    long = Attention(1, 65536, 65536, 32, 32, 128)
    ratio = duration(with_(long, window=4096)) / duration(long)
    assert ratio == pytest.approx(2 * 4096 / 65536, rel=0.15)


def test_decode_of_a_long_cache_takes_as_long_as_reading_it():
    # 64 requests x 16,384 keys x 8 heads x 128 x 2 (K, V) x 2 B = 4.29 GB; at 3.35 TB/s 1.28 ms at least.
    attention = Attention(64, 1, 16384, heads=64, kv_heads=8, head_dim=128)
    least = 64 * 16384 * 8 * 128 * 4 / 3.35e12
    estimate = estimate_of(H100, attention)
    assert least < estimate.duration * 1e-12 < 1.25 * least
    assert estimate.bound == "hbm"


def test_one_request_splits_its_keys_over_the_gpu():
    estimate = estimate_of(H100, Attention(1, 1, 131072, heads=8, kv_heads=1, head_dim=128))
    assert estimate.detail["splits"] > 32


def test_sharing_kv_heads_makes_decode_cheaper():
    many = Attention(64, 1, 8192, heads=32, kv_heads=32, head_dim=128)
    assert duration(with_(many, kv_heads=8), H100) < 0.35 * duration(many, H100)


def test_an_absorbed_mla_cache_is_read_once():
    # One latent of 576 columns a position, not 576 + 512.
    latent = Attention(64, 1, 4096, heads=16, kv_heads=1, head_dim=576, value_dim=512, shared_latent=True)
    assert latent.sizes.keys == 64 * 4096 * 576 * 2
    assert estimate_of(H100, latent).duration > 0


def test_an_fp8_cache_halves_the_transfer():
    attention = Attention(64, 1, 16384, heads=64, kv_heads=8, head_dim=128)
    ratio = duration(with_(attention, kv_dtype="fp8"), H100) / duration(attention, H100)
    assert 0.45 < ratio < 0.75


def test_unfused_attention_sends_the_scores_through_memory():
    unfused = estimate_of(A100, with_(PREFILL, fused=False))
    scores = 4 * 32 * 4096 * 4096 * 2
    assert unfused.bytes["hbm"] > 2 * scores
    assert unfused.duration > 2 * duration(PREFILL)
    assert len(unfused.detail["kernels"]) == 3


def test_every_device_of_a_measured_family_prices_attention():
    for name in ("a100_pcie_40gb", "h200", "b200", "gb200", "l40s", "mi300x", "v100_sxm2", "tpu_v5p"):
        dtype = "fp16" if name == "v100_sxm2" else "bf16"
        estimate = estimate_of(load_device(name), with_(PREFILL, dtype=dtype))
        assert estimate.duration > 0


@pytest.mark.parametrize(
    ("attention", "told"),
    [
        (Attention(1, 8, 8, heads=6, kv_heads=4, head_dim=64), "no multiple of kv_heads"),
        (Attention(1, 8, 4, heads=4, kv_heads=4, head_dim=64), "more than key_length"),
        (Attention(0, 8, 8, heads=4, kv_heads=4, head_dim=64), "batch is 0"),
    ],
)
def test_impossible_shapes_are_named(attention, told):
    with pytest.raises(InputError, match=told):
        estimate_of(A100, attention)


def test_a_utilisation_above_one_is_refused():
    settings = [("constants", "{memory: {default: {hbm_utilisation: 1.2}}}")]
    with pytest.raises(ConfigError, match="hbm_utilisation: 1.2 is out of range"):
        load_device("a100_sxm_80gb", settings=settings)


GROUPED = Attention(64, 1, 2048, heads=32, kv_heads=8, head_dim=128)


def decoded(attention, device="h100_sxm", **policy):
    return estimate_of(load_device(device).under(library="trtllm", decode=DecodePolicy(**policy)), attention)


def test_query_heads_that_share_no_keys_read_them_from_l2_each():
    apart = decoded(GROUPED, groups=(8,))
    # Keys and values of 64 requests, 8 heads, 2,048 positions, 128 wide, 2 bytes: HBM once, L2 4 times.
    cache = 64 * 8 * 2048 * 2 * 128 * 2
    assert cache < apart.bytes["hbm"] < 1.01 * cache
    assert 4 * cache < apart.bytes["l2"] < 4.01 * cache
    assert apart.duration > 1.3 * decoded(GROUPED, groups=(4,)).duration


@pytest.mark.parametrize(
    ("policy", "shared"),
    [
        ({}, True),
        ({"groups": (4, 8), "head_dims": (128,)}, True),
        ({"groups": (8,)}, False),
        ({"head_dims": (64,)}, False),
        ({"blocks_per_sm": 4.0}, False),  # 64 x 8 key heads, 132 SMs
        ({"blocks_per_sm": 3.8}, True),
    ],
)
def test_a_policy_says_which_query_heads_share_their_keys(policy, shared):
    device = load_device("h100_sxm").under(library="trtllm", decode=DecodePolicy(**policy))
    assert shares_keys(GROUPED, device) is shared


def test_keys_that_are_not_split_take_a_lone_block_each():
    lone = with_(GROUPED, batch=1, key_length=8192, kv_heads=1, heads=8)
    whole, parts = decoded(lone, groups=(), split=False), decoded(lone, groups=())
    assert (whole.detail["splits"], whole.detail["blocks"]) == (1, 8)
    assert parts.detail["splits"] > 1
    # One block draws 66.9 GB/s: 8,192 positions of 512 bytes take it 62.7 us.
    assert whole.duration > 62.7e6 > parts.duration


def test_masked_attention_of_an_old_engine_is_bound_by_its_instructions():
    # TensorRT-LLM 0.9 on H100: 128 heads have an SM each, 256 share one in twos, and keys in half the bytes
    # gain little; XQA, by Ampere's instructions, takes longer for keys in fp8 than for as many in 16 bits.
    policy = DecodePolicy(groups=(8,), split=False)
    device = H100.under(library="trtllm-0.9", decode=policy)

    def takes(kv_heads, batch, kv_dtype="fp8"):
        call = Attention(
            batch, 1, 4096, heads=32, kv_heads=kv_heads, head_dim=128, dtype="fp16", kv_dtype=kv_dtype
        )
        short = with_(call, key_length=2048)
        return duration(call, device) - duration(short, device)

    assert takes(8, 8) == pytest.approx(2 * takes(8, 4), rel=0.02)
    assert takes(8, 4, "fp16") < 1.5 * takes(8, 4)
    assert takes(4, 16) > 1.2 * takes(4, 16, "fp16")
