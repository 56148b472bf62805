"""Profiles of several ranks on a machine: groups, clocks, copies, growth, and what cannot be derived."""

import pytest

from rapid_des.errors import InputError
from rapid_des.profiles import read_profile
from rapid_des.profiles.ranks import GroupPattern, ProfileChanges, _role, run_of_ranks
from tests.cli.shell import call, refused
from tests.profiles.test_profiles import event, launch, written

MANY = 64 * 2**20


def rank(at=0, work=1000, name="allreduce", ranks="[0, 1]", elements=MANY):
    """Return a rank's step in which the next step's first kernel waits for a message behind a product."""
    size = ranks.count(",") + 1
    said = {"Collective name": name, "In msg nelems": elements, "Group size": size, "dtype": "BFloat16"}
    said |= {"Process Group Name": "0", "Process Group Ranks": ranks}
    end = max(work, 1000) + 5000
    return [
        event("ProfilerStep#1", at, end, "user_annotation"),
        launch(1, at),
        event("cudaStreamWaitEvent", at + 2, 1, "cuda_runtime"),
        launch(2, at + 4),
        event("cudaStreamWaitEvent", at + 6, 1, "cuda_runtime"),
        event("ProfilerStep#2", at + 8, end, "user_annotation"),
        launch(3, at + 9),
        event("sgemm", at + 10, work, stream=7, correlation=1),
        event("ncclDevKernel_AllReduce", at + 10 + work, end - work, stream=9, correlation=2, **said),
        event("gelu_kernel", at + 12 + end, 20, stream=7, correlation=3),
    ]


def paths(tmp_path, *ranks):
    found = []
    for number, events in enumerate(ranks):
        found.append(written(tmp_path, events, f"{number}.json", distributedInfo={"rank": number}))
    return [str(path) for path in found]


def asked(files, *words, machine="dgx_a100"):
    return call("replay", *files, "--network", "simulated", "--on", machine, *words, "--json")


def test_a_missing_rank_is_a_copy_and_messages_take_what_the_machine_says(tmp_path):
    files = paths(tmp_path, rank())
    whole = asked(files).json
    assert (whole["ranks"], whole["copied_ranks"], whole["collectives_simulated"]) == (2, 1, 1)
    assert whole["step_time_s"] < whole["measured_s"] == pytest.approx(6002e-6)
    slow = asked(files, "--set", "machine.fabric.0.bandwidth=0.5x").json
    message = whole["step_time_s"] - 1002e-6  # behind 1,000 us of product, and before 2 us of launch
    assert slow["step_time_s"] - whole["step_time_s"] == pytest.approx(message, rel=0.2)
    assert slow["expected_s"] == pytest.approx(
        slow["measured_s"] * slow["step_time_s"] / whole["step_time_s"]
    )


def test_clocks_are_aligned_and_all_wait_for_the_slow_rank(tmp_path):
    files = paths(tmp_path, rank(), rank(at=123_456, work=3000))
    # both leave the message together: rank 1 after 8,000 us of its own clock, rank 0 after 6,000
    found = asked(files).json
    assert found["clock_skew_s"] == {"0": 0.0, "1": pytest.approx(0.125456)}
    alone = asked(files[:1]).json
    assert found["step_time_s"] > alone["step_time_s"]
    assert "1.json (the slowest of 2 ranks)" in call("replay", *files).out
    assert "as collectives show" in call("replay", *files, "--network", "simulated", "--on", "dgx_a100").out


@pytest.mark.parametrize(
    ("kind", "factor"), [("allreduce", 1), ("_allgather_base", 1 / 4), ("reduce_scatter", 1)]
)
def test_groups_grow_and_shards_shrink_with_them(tmp_path, kind, factor):
    (path,) = paths(tmp_path, rank(name=kind))
    run = run_of_ranks([read_profile(tmp_path / path)], ProfileChanges(grown=(2, 8)))
    assert len(run.traces.ranks) == 8
    assert run.traces.groups["group 0 from rank 0"] == tuple(range(8))
    assert run.traces.ranks[5].nodes.size.max() == 2 * MANY * factor


def test_inner_groups_stay_where_outer_ones_grow(tmp_path):
    tp = rank(ranks="[0, 1]")
    dp = [{**each, "args": dict(each["args"])} for each in rank(ranks="[0, 2]", at=0)]
    message = next(each for each in dp if "nccl" in each["name"])
    message["args"] |= {"Process Group Name": "dp", "Process Group Ranks": "[1, 3]", "correlation": 9}
    path = written(tmp_path, [*tp, {**message, "ts": 20, "dur": 10}], distributedInfo={"rank": 1})
    run = run_of_ranks([read_profile(path)], ProfileChanges(grown=(2, 4)))
    assert run.traces.groups["group dp from rank 1"] == (1, 3, 5, 7)
    assert run.traces.groups["group 0 from rank 6"] == (6, 7)


def test_a_missing_rank_has_the_profile_of_its_role():
    tensor, data, pipeline = GroupPattern(1, 2), GroupPattern(2, 4), GroupPattern(4, 2)
    assert [_role(rank, {0, 1}, [tensor, data]) for rank in range(8)] == [0, 1] * 4
    assert [_role(rank, {0, 4}, [pipeline]) for rank in range(8)] == [0] * 4 + [4] * 4
    assert [_role(rank, {0, 4}, []) for rank in range(6)] == [0, 0, 0, 0, 4, 4]


@pytest.mark.parametrize(
    ("wanted", "name", "said"),
    [((8, 16), "allreduce", "no outermost group has 8 ranks; there are [2]"),
     ((2, 3), "allreduce", "no multiple of 2"),
     ((2, 8), "all_to_all", "does not follow from their number")],
)  # fmt: skip
def test_what_can_not_be_derived_is_refused_by_name(tmp_path, wanted, name, said):
    path = written(tmp_path, rank(name=name), distributedInfo={"rank": 0})
    with pytest.raises(InputError) as problem:
        run_of_ranks([read_profile(path)], ProfileChanges(grown=wanted))
    assert said in str(problem.value)


def test_a_group_of_which_one_rank_is_known_has_its_neighbours_between(tmp_path):
    path = written(tmp_path, rank(ranks="[0, 4, 8, 12]"), distributedInfo={"rank": 0})
    run = run_of_ranks([read_profile(path)], ProfileChanges(grown=(4, 8)))
    assert run.traces.groups["group 0 from rank 3"] == tuple(range(3, 32, 4))  # 16 ranks became 32


def crossed(first, second, *, at=0):
    """Return a step in which the messages of two groups overlap: a ends at 2,000 us, b at 2,050."""
    said = {"Collective name": "allreduce", "In msg nelems": MANY, "Group size": 2, "dtype": "BFloat16"}
    said["Process Group Ranks"] = "[0, 1]"
    ends = {"a": 2000, "b": 2050}
    starts = {group: (at + start, ends[group] - start) for group, start in ((first, 10), (second, 12))}
    messages = [
        event(
            "ncclDevKernel_AllReduce", start=starts[group][0], length=starts[group][1], stream=ord(group),
            correlation=number, **said, **{"Process Group Name": group},
        )
        for number, group in enumerate((first, second), 2)
    ]  # fmt: skip
    calls = [launch(number, at + number) for number in (1, 2, 3)]
    return [*calls, event("sgemm", at + 5, 1000, stream=7, correlation=1), *messages]


def test_without_overlap_ranks_that_issue_two_groups_in_different_orders_go_one_by_one(tmp_path):
    message = asked(paths(tmp_path, rank())).json["step_time_s"] - 1002e-6  # as above, of the same bytes
    files = paths(tmp_path, crossed("a", "b"), crossed("b", "a", at=123))
    alone = asked(files, "--overlap", "none").json
    # a product of 1,000 us that begins at 5 us, then one message behind the other
    assert alone["step_time_s"] == pytest.approx(1000e-6 + 2 * message, rel=0.01)
    assert alone["collectives_simulated"] == 4


def test_messages_of_unknown_bytes_keep_their_time(tmp_path):
    events = rank()
    for each in events:
        each["args"] = {key: value for key, value in each["args"].items() if " " not in key}
    files = paths(tmp_path, events)
    found = asked(files).json
    assert (found["collectives_simulated"], found["collectives_as_measured"]) == (0, 1)
    assert found["step_time_s"] == pytest.approx(found["measured_s"])


def test_options_that_do_not_go_together_are_refused(tmp_path):
    (file,) = paths(tmp_path, rank())
    for words, said in {
        ("--network", "simulated"): "needs a machine",
        ("--dp", "2=4"): "--dp does not go with a profile whose messages keep their time",
        ("--network", "simulated", "--on", "dgx_a100", "--dp", "2"): "allowed: N=M",
        ("--remove", "gem"): "is not one of communication",
    }.items():
        assert said in refused(call("replay", file, *words))
    assert "is rank 0, as" in refused(
        call("replay", file, file, "--network", "simulated", "--on", "dgx_a100")
    )


def test_removed_kernels_take_no_time(tmp_path):
    (file,) = paths(tmp_path, rank())
    assert call("replay", file, "--remove", "gemm", "--json").json["step_time_s"] == pytest.approx(5002e-6)
    assert "gemm takes no time" in call("replay", file, "--remove", "gemm").out
