"""Replayed steps of profiles: as measured unless kernels are scaled, and then as what waits for them says."""

from pathlib import Path

import pytest

from rapid_des.errors import InputError
from rapid_des.profiles import is_profile, read_profile, replay_step
from tests.cli.shell import ROOT, call, refused
from tests.profiles.test_profiles import SAMPLES, event, launch, written
from validation import open_folder, validate

WITH_GPU = ["sampled_rank_0", "mi250_train", "event_sync_multi_stream", "triton"]


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the samples are in a checkout only")
@pytest.mark.parametrize("name", WITH_GPU)
def test_a_replay_of_what_was_measured_takes_as_long(name):
    found = replay_step(read_profile(SAMPLES / f"{name}.json.gz"))
    assert found.simulated == pytest.approx(found.measured, rel=1e-4)


def chain(at=0):
    """Two products, launched ahead, a message of another stream behind them, and a host that waits for it."""
    return [
        *(launch(number, at + 2 * number) for number in (1, 2, 3)),
        event("sgemm", at + 10, 100, stream=7, correlation=1),
        event("sgemm", at + 110, 100, stream=7, correlation=2),
        event("ncclDevKernel_AllReduce", at + 213, 50, stream=9, correlation=3),
        event("cudaStreamSynchronize", at + 20, 250, "cuda_runtime"),  # returns at 270, 7 after the message
        launch(4, at + 280),
        event("gelu_kernel", at + 285, 20, stream=7, correlation=4),
    ]


@pytest.mark.parametrize(
    ("scaled", "length"),
    [
        ({}, 295),
        ({"gemm": 2.0}, 195),  # the message, the host behind it and what that launches come 100 us earlier
        ({"communication": 5.0}, 255),
        ({"elementwise": 4.0}, 280),
        ({"gemm": 100.0, "communication": 1.0}, 97),
        ({"host": 2.0}, 286.5),  # from the message's end at 263 to the call at 280 half of the time
    ],
)
def test_what_waits_for_faster_kernels_comes_earlier(tmp_path, scaled, length):
    profile = read_profile(written(tmp_path, chain()))
    assert replay_step(profile, scaled).simulated == pytest.approx(length * 1_000_000, rel=1e-7)


def test_the_command_prints_both_times_and_refuses_what_does_not_go_with_a_profile(tmp_path):
    path = str(written(tmp_path, chain()))
    plain = call("replay", path, "--speed", "gemm=2x", "--json").json
    assert plain["measured_s"] == pytest.approx(295e-6) and plain["step_time_s"] == pytest.approx(195e-6)
    assert "(-33.90%)" in call("replay", path, "--speed", "gemm=2x").out
    assert call("replay", path, "--remove", "attention", "--json").json["unmet"] == ["attention"]
    for words, said in {
        ("--speed", "gem=2x"): "'gem' is not one of communication",
        ("--speed", "gemm=0x"): "is not a factor from 0.001x to 1000x",
        ("--fault", "gpu=0 compute=0.5"): "--fault does not go with a profile",
        ("--on", "dgx_h100"): "--on does not go with a profile",
    }.items():
        answer = call("replay", path, *words)
        assert answer.code == 2 and said in answer.err
    trace = str(ROOT / "workloads" / "traces" / "all_reduce_4")
    assert call("replay", trace, "--on", "dgx_a100", "--speed", "gemm=2x").code == 2
    assert not is_profile(tmp_path) and is_profile(tmp_path / "rank.json")


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the samples are in a checkout only")
def test_validation_scores_profiles_and_names_files_that_are_none(tmp_path):
    (tmp_path / "profiles").mkdir()
    written(tmp_path / "profiles", chain())
    (tmp_path / "profiles" / "other.json").write_text("{}")
    topics = validate(open_folder(tmp_path), ["profiles"])["topics"]
    assert topics["profiles/replay"]["rows"] == topics["profiles/classified"]["rows"] == 1
    assert topics["profiles/replay"]["mean_abs_pct"] < 0.01
    (reason,) = topics["profiles/replay"]["unsupported"]
    assert "no profile of PyTorch" in str(reason)


def test_overlap_of_messages_is_bounded_from_both_sides(tmp_path):
    """Half of a message of 60 us hides behind a kernel of 40 us, and a kernel of 30 us waits for its end."""
    events = [
        launch(1, 100),
        launch(2, 101),
        launch(3, 102),
        event("sgemm", 110, 40, stream=7, correlation=1),
        event("ncclDevKernel_AllReduce", 120, 60, stream=8, correlation=2),
        event("sgemm", 181, 30, stream=7, correlation=3),
    ]
    path = str(written(tmp_path, events))
    step = {
        policy: call("replay", path, "--overlap", policy, "--json").json["step_time_s"]
        for policy in ("measured", "none", "full")
    }
    # without overlap 40, 60 and 30 us follow one another, with lags; with full overlap 40 and 30 us
    assert step["measured"] == pytest.approx(101e-6)
    assert 130e-6 <= step["none"] <= 150e-6
    assert 70e-6 <= step["full"] <= 80e-6
    assert "all wait for it" in call("replay", path, "--overlap", "none").out
    assert "--overlap" in refused(call("replay", "prefix", "--overlap", "none", "--on", "dgx_a100"))
    with pytest.raises(InputError, match="overlap 'half' is not one of measured, none, full"):
        replay_step(read_profile(Path(path)), overlap="half")


def test_a_damaged_profile_is_called_one_by_its_name(tmp_path):
    path = tmp_path / "rank_0.json.gz"
    path.write_bytes(b"\x1f\x8b\x08\x00")
    assert "damaged or cut off" in refused(call("replay", str(path)))
