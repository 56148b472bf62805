"""From what a person names to one file a rank."""

import pytest

from rapid_des.chakra import ReadOptions, read_set
from rapid_des.chakra.source import discover
from rapid_des.errors import TraceError
from tests.chakra.writing import metadata, node, write


def touch(folder, *names):
    for name in names:
        write(folder / name, metadata(), node(1, us=1))


@pytest.mark.parametrize("reference", ["", "job", "job.%d.et"])
def test_folder_prefix_and_pattern_find_the_same_set(tmp_path, reference):
    touch(tmp_path, "job.0.et", "job.1.et", "job.10.et", "job.2.et")
    found = discover(tmp_path / reference)
    assert (found.prefix, list(found.files), found.missing[:2]) == ("job", [0, 1, 2, 10], (3, 4))


def test_one_file_is_one_rank_with_its_number(tmp_path):
    touch(tmp_path, "job.0.et", "job.7.et")
    assert list(discover(tmp_path / "job.7.et").files) == [7]


def test_a_file_without_a_number_is_rank_zero(tmp_path):
    touch(tmp_path, "trace.et")
    assert list(discover(tmp_path).files) == [0]


def test_eg_files_and_compressed_ones_count(tmp_path):
    touch(tmp_path, "old.0.eg", "old.1.eg.gz")
    assert list(discover(tmp_path).files) == [0, 1]


def test_several_sets_in_a_folder_must_be_told_apart(tmp_path):
    touch(tmp_path, "a.0.et", "b.0.et", "b.1.et")
    with pytest.raises(TraceError, match=r"several trace sets.*a \(1 ranks\), b \(2 ranks\)"):
        discover(tmp_path)
    assert list(discover(tmp_path / "b").files) == [0, 1]


def test_a_wrong_prefix_gets_the_nearest_and_the_list(tmp_path):
    touch(tmp_path, "workload.0.et")
    with pytest.raises(TraceError, match=r"did you mean 'workload'\?"):
        discover(tmp_path / "worklod")


def test_two_files_of_one_rank_are_refused(tmp_path):
    touch(tmp_path, "a.0.et", "a.00.et")
    with pytest.raises(TraceError, match="rank 0 has two files"):
        discover(tmp_path)


def test_a_folder_without_traces_says_what_it_has(tmp_path):
    (tmp_path / "set.tar").write_bytes(b"")
    with pytest.raises(TraceError, match=r"unpack first: set\.tar"):
        discover(tmp_path)
    with pytest.raises(TraceError, match="no such file or folder"):
        discover(tmp_path / "x" / "y")


def test_the_world_is_the_ranks_that_have_files(tmp_path):
    touch(tmp_path, "job.1.et", "job.3.et")
    assert read_set(tmp_path, ReadOptions()).groups["world"] == (1, 3)


def test_a_preset_is_found_by_its_bare_name():
    assert list(discover("all_reduce_4").files) == [0, 1, 2, 3]
