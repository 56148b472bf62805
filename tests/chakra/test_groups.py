"""Process groups: where their members come from, and what a name means."""

import json

import pytest

from rapid_des.chakra import ReadOptions, check, read_set
from rapid_des.chakra.groups import dimension_groups, which_group
from rapid_des.chakra.wire import message_class
from rapid_des.errors import TraceError
from tests.chakra.writing import all_reduce, metadata, node, ranks, write

WITH_GROUP = [all_reduce(1, pg_name="1")]


def group_file(folder, name, content):
    (folder / name).write_text(json.dumps(content))


def described(name, values, id=1):
    """A node of the PyTorch converter whose inputs describe a group."""
    message = message_class("Node").FromString(node(id, name, rf_id=id, is_cpu_op=True))
    message.inputs.values = values
    return message.SerializeToString()


def test_the_file_named_after_the_traces_comes_before_another(tmp_path):
    ranks(tmp_path, WITH_GROUP, WITH_GROUP)
    group_file(tmp_path, "job.groups.json", {"1": [1, 0]})
    group_file(tmp_path, "other.json", {"1": [0]})
    assert read_set(tmp_path).groups["1"] == (1, 0)


def test_the_only_group_file_of_the_folder_is_found_among_other_json(tmp_path):
    ranks(tmp_path, WITH_GROUP, WITH_GROUP)
    group_file(tmp_path, "comm.json", {"1": [0, 1]})
    group_file(tmp_path, "system.json", {"scheduling-policy": "LIFO"})
    traces = read_set(tmp_path)
    assert traces.groups["1"] == (0, 1)
    assert "groups: comm.json (the folder's only group file)" in traces.notes


def test_of_several_group_files_none_is_guessed(tmp_path):
    ranks(tmp_path, WITH_GROUP, WITH_GROUP)
    group_file(tmp_path, "a.json", {"1": [0, 1]})
    group_file(tmp_path, "b.json", {"1": [0]})
    assert any("choose one with --groups" in note for note in read_set(tmp_path).notes)
    assert {finding.kind for finding in check(tmp_path)} == {"undefined group"}
    assert read_set(tmp_path, ReadOptions(groups=tmp_path / "b.json")).groups["1"] == (0,)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[1]", "is no object"),
        ('{"1": [0, "a"]}', "1: .*is no list of ranks"),
        ('{"1": [0, 0]}', "twice"),
        ("{", "not valid JSON"),
    ],
)
def test_a_wrong_group_file_is_named(tmp_path, content, problem):
    ranks(tmp_path, WITH_GROUP)
    (tmp_path / "g.txt").write_text(content)
    with pytest.raises(TraceError, match=f"g.txt.*{problem}"):
        read_set(tmp_path, ReadOptions(groups=tmp_path / "g.txt"))


def test_pytorchs_metadata_node_defines_groups_and_no_ranks_mean_all(tmp_path):
    values = '[\'[{"pg_name": "0", "ranks": []}, {"pg_name": "1", "ranks": [0, 1]}]\']'
    program = [described("## process_group:init ##", values), all_reduce(2, pg_name="1")]
    traces = read_set(ranks(tmp_path, program, program, [node(1, rf_id=1)]))
    assert traces.groups["0"] == (0, 1, 2)
    assert traces.groups["1"] == (0, 1)


@pytest.mark.parametrize("pair", ["['2', 'undefined']", "('2', 'mesh_tp')"])
def test_recorded_calls_describe_groups_by_start_stride_and_size(tmp_path, pair):
    values = f"[[[15, 5, 0, 8, 4, 'cuda:0']], [1, False], {pair}, 0, 'allreduce', [], [], 1, 2, 3]"
    program = [described("record_param_comms", values), all_reduce(2, pg_name="2")]
    assert read_set(ranks(tmp_path, program)).groups["2"] == (1, 3, 5)


def test_one_name_for_different_groups_on_different_ranks_is_split(tmp_path):
    def program(start):
        values = f"[1, ['tp', 'x'], 0, 'allreduce', [], [], {start}, 1, 2]"
        return [described("record_param_comms", values), all_reduce(2, pg_name="tp", rf_id=1)]

    traces = read_set(ranks(tmp_path, program(0), program(0), program(2), program(2)))
    resolved = [traces.groups[rank.groups[0]] for rank in traces.ranks]
    assert resolved == [(0, 1), (0, 1), (2, 3), (2, 3)]
    assert check(tmp_path) == ()


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("", {}, "world"),
        ("0", {}, "world"),
        ("0", {"0": ()}, "0"),
        ("0.0", {"0": ()}, "0"),
        ("0.0", {}, "world"),
        ("3.0", {"3": ()}, "3"),
        ("tp", {"tp": ()}, "tp"),
        ("5", {"3": ()}, "5"),
        ("nan", {}, "nan"),
        ("inf", {}, "inf"),
    ],
)
def test_what_a_group_name_means(name, known, expected):
    assert which_group(name, known) == expected


def test_zero_can_be_taken_for_the_world_as_astra_sim_does():
    assert which_group("0", {"0": ()}, zero_is_world=True) == "world"


def test_an_undefined_group_names_the_node_and_those_known(tmp_path):
    folder = ranks(tmp_path, [all_reduce(4, pg_name="9")])
    (finding,) = check(folder)
    assert (
        "rank 0 node 4 ('ar') names group '9', which is defined nowhere; known groups: world"
        in finding.message
    )


def test_a_collective_of_a_rank_outside_the_group_is_found(tmp_path):
    ranks(tmp_path, WITH_GROUP, WITH_GROUP, WITH_GROUP)
    group_file(tmp_path, "job.groups.json", {"1": [0, 1]})
    assert [(finding.kind, finding.rank) for finding in check(tmp_path)] == [("not a member", 2)]


def test_a_group_larger_than_the_set_names_the_ranks_without_files(tmp_path):
    ranks(tmp_path, WITH_GROUP, WITH_GROUP)
    group_file(tmp_path, "job.groups.json", {"1": [0, 1, 2, 3]})
    assert "group '1' has members without a trace file: 2, 3" in check(tmp_path)[0].message


def test_one_member_groups_and_one_set_under_two_names_are_fine(tmp_path):
    ranks(tmp_path, [all_reduce(1, pg_name="a"), all_reduce(2, pg_name="b")], [all_reduce(1, pg_name="b")])
    group_file(tmp_path, "job.groups.json", {"a": [0], "b": [0, 1], "c": [0, 1]})
    assert check(tmp_path) == ()


def partial(flags):
    """An all-reduce over some dimensions only."""
    message = message_class("Node").FromString(all_reduce(1))
    message.attr.add(name="involved_dim").bool_list.values.extend(flags)
    return message.SerializeToString()


def test_all_dimensions_are_the_world(tmp_path):
    traces = read_set(ranks(tmp_path, [partial([True, True])], [partial([True, True])]))
    assert traces.ranks[0].groups == ("world",)


def test_some_dimensions_need_the_ranks_shape(tmp_path):
    folder = ranks(tmp_path, *([partial([True, False])] for _ in range(4)))
    assert (
        "spans the network dimensions 1,0; give the ranks' shape (--dimensions)" in check(folder)[0].message
    )
    # Shape 2x2, innermost first: ranks 0 and 1 differ in the first dimension only, and so do 2 and 3.
    traces = read_set(folder, ReadOptions(dimensions=(2, 2)))
    assert [traces.groups[rank.groups[0]] for rank in traces.ranks] == [(0, 1), (0, 1), (2, 3), (2, 3)]


def test_a_shape_that_does_not_hold_the_ranks_is_refused(tmp_path):
    folder = ranks(tmp_path, *([partial([True, False])] for _ in range(4)))
    with pytest.raises(TraceError, match="holds 6 ranks, the set has 4"):
        read_set(folder, ReadOptions(dimensions=(2, 3)))


def test_dimension_groups_of_an_outer_dimension_stride_over_the_inner():
    groups = dimension_groups((False, True), (2, 2), (0, 1, 2, 3))
    assert list(groups.values()) == [(0, 2), (1, 3)]


def test_a_number_names_a_group_as_well_as_a_text(tmp_path):
    write(tmp_path / "job.0.et", metadata(), all_reduce(1, comm_group=7))
    group_file(tmp_path, "job.groups.json", {"7": [0]})
    assert read_set(tmp_path).ranks[0].groups == ("7",)
