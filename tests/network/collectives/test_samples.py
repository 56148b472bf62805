"""Collectives by measured times: alone they take what was measured."""

import pytest

import rapid_des as rd
from rapid_des.errors import RapidDesError
from rapid_des.network.collectives.libraries.nccl_network import load_samples

HEAD = "op,nodes,gpus_per_node,bytes,time_us\n"
ROWS = "allreduce,1,8,1048576,100\nallreduce,1,8,4194304,200\nallreduce,1,8,4194304,220\np2p,1,2,1048576,50\n"


@pytest.fixture
def machine(tmp_path):
    def load(text=HEAD + ROWS):
        file = tmp_path / "samples.csv"
        file.write_text(text)
        settings = {"collectives.libraries.default": {"library": "samples", "file": str(file)}}
        return rd.load_machine("dgx_a100", settings=settings)

    return load


def test_alone_a_collective_takes_the_median_of_its_samples(machine):
    rows = rd.bench(machine(), "all_reduce", [2**20, 2**21, 2**22, 2**24])
    times = [row.duration / 1e6 for row in rows]
    between = 100 * (210 / 100) ** 0.5
    assert times == pytest.approx([100, between, 210, 4 * 210], rel=0.02)


def test_groups_that_nobody_sampled_are_left_to_the_links(machine):
    plain = rd.load_machine("dgx_a100", settings={"collectives.libraries.default": {"library": "native"}})
    sampled, native = (
        rd.bench(each, "all_reduce", [2**20], gpus=4)[0].duration for each in (machine(), plain)
    )
    assert sampled == native


def test_sizes_between_are_linear_in_the_logarithms(machine, tmp_path):
    machine()
    curve = load_samples(str(tmp_path / "samples.csv"))["all_reduce", 1, 8]
    assert curve.microseconds(2**20) == pytest.approx(100)
    assert curve.microseconds(2**19) == pytest.approx(50)
    assert curve.microseconds(2**23) == pytest.approx(420)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("op,nodes\n", "no column 'gpus_per_node'"),
        (HEAD + "gossip,1,8,1,1\n", "line 2: op 'gossip'; allowed: all_reduce"),
        (HEAD + "allreduce,1,8,x,1\n", "line 2: nodes, gpus_per_node, bytes, time_us must be numbers"),
        (HEAD + "allreduce,1,8,1,0\n", "line 2: nodes, gpus_per_node, bytes, time_us must be above 0"),
    ],
)
def test_a_wrong_file_is_one_clear_line(machine, text, problem, monkeypatch):
    load_samples.cache_clear()
    with pytest.raises(RapidDesError) as error:
        machine(text)
    load_samples.cache_clear()
    assert problem in str(error.value) and "samples.csv" in str(error.value)


def test_the_configurations_of_the_paper_are_job_files():
    job = rd.load_job("gpt_20b_train_pp4_tp8_dp4")
    assert (job.gpus, job.micro_batches, sum(job.layers)) == (128, 16, 44)
    assert [
        rd.load_job(name).gpus for name in ("llama_13b_train_pp4_tp8_dp2", "llemma_7b_train_pp4_tp2_dp2")
    ] == [
        64,
        16,
    ]
