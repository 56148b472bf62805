"""Rows that pandas takes as they are."""

import pytest

import rapid_des as rd
from rapid_des.errors import InputError, UnsupportedByEngine
from rapid_des.units import seconds
from rapid_des.values import asdict


@pytest.fixture(scope="module")
def result():
    return rd.simulate(rd.load_job("llama2_7b_train"), rd.load_machine("dgx_a100"))


def test_the_operators_of_the_critical_rank_add_up_to_its_compute(result):
    rows = result.operators()
    assert {row.rank for row in rows} == {result.critical_rank}
    assert sum(row.time_s for row in rows) == pytest.approx(seconds(result.breakdown["compute"]))
    assert [row.operator for row in rows][:6] == list(result.busiest)[:6]
    assert all(row.flops >= 0 and row.hbm_bytes >= 0 and row.runs > 0 for row in rows)
    gemm = next(row for row in rows if row.operator == "forward.ffn.in")
    assert (gemm.bound, gemm.model) == ("tensor", "gemm")
    assert all(row.bound and row.model for row in rows)


def test_messages_name_what_they_are_and_when_all_were_there(result):
    rows = result.messages(rank=0)
    assert {row.kind for row in rows} == {"tp", "dp", "pp"}
    assert all(0 <= row.start_s <= row.ready_s <= row.finish_s for row in rows)
    sends = [row for row in rows if row.operation == "send"]
    assert sends
    assert {row.group for row in sends} == {"4"}  # tp 2 and dp 2 inside: the next stage begins at rank 4


def test_links_carry_what_messages_send(result):
    links = result.links()
    assert {row.kind for row in links} == {"tp", "dp", "pp"}
    assert all(0 < row.utilisation <= 1 for row in links)


def test_an_unknown_rank_and_a_mode_without_rows_are_refused(result):
    with pytest.raises(InputError, match="rank 8: the run has ranks 0 to 7"):
        result.operators(rank=8)
    job, machine = rd.load_job("llama3_1_70b_train_64"), rd.load_machine("torus2d_ring_a100_64")
    blocks = rd.simulate(job, machine, mode="analytical")
    with pytest.raises(UnsupportedByEngine, match="mode analytical has no rows of messages"):
        blocks.messages()


def test_rows_are_a_data_frame_as_they_are(result):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(result.links())
    assert list(frame.columns) == list(asdict(result.links()[0]))
    assert frame.bytes.sum() == sum(row.bytes for row in result.links())
