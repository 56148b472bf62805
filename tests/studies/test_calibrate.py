"""Calibration: files of a machine from measurements whose cause is known, and evidence that cannot be."""

import pytest

from rapid_des.device.machine_evidence import MeasuredStep
from rapid_des.machine import load_machine
from rapid_des.network.collectives.libraries.nccl import C, GroupPlacement, cost_in_node
from rapid_des.network.collectives.libraries.nccl_fabric import load_fabric
from rapid_des.report.forecast import JobKind, own_steps, posterior
from rapid_des.units import Duration
from tests.cli.shell import call, refused

SIZES = [2**power for power in range(20, 32)]


def nccl_text(times, ranks=8, name="all_reduce"):
    """Return an output of nccl-tests of some times in microseconds by size."""
    factor = (2 if name == "all_reduce" else 1) * (ranks - 1) / ranks
    lines = [
        f"#  Rank {n} Group 0 Pid {n} on node{n // 8} device {n % 8} [0x1b] NVIDIA H100" for n in range(ranks)
    ]
    lines += ["#       size         count      type   redop    root     time   algbw   busbw #wrong"]
    for size, time in times.items():
        rate = size / time / 1e3
        lines += [f"{size} {size // 4} float sum -1 {time:.2f} {rate:.2f} {rate * factor:.2f} 0"]
    return "\n".join([f"# Collective test starting: {name}_perf", *lines, "# Avg bus bandwidth : 1"])


def slower(factor):
    """Return what an all-reduce takes on DGX H100 whose NVSwitches are slower than measured ones."""
    fabric, place = load_fabric("h100_nvswitch"), GroupPlacement(8, 1, 8)
    times = {size: cost_in_node(fabric, C.ALL_REDUCE, place, size).duration / 1e6 for size in SIZES}
    return {size: time * (factor if size > 2**24 else 1) for size, time in times.items()}


def dmon(*clocks):
    return "\n".join(["#Entity   SMCLK  GPUTL", "ID", *(f"GPU 0  {clock}  {use}" for clock, use in clocks)])


def bandwidths(*rates):
    rows = [f" {65536 << n}  5000  {rate:.2f}  {rate:.2f}  0.1" for n, rate in enumerate(rates)]
    return "\n".join(
        ["RDMA_Write BW Test", "#bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate", *rows]
    )


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibrate")
    files = {
        "clocks.txt": dmon((1500, 99), (1500, 100), (1510, 97), (210, 0), (1490, 100)),
        "ib.txt": bandwidths(360.0, 361.0, 360.0, 359.0),
        "all_reduce.txt": nccl_text(slower(1.2)),
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    paths = [str(folder / name) for name in files]
    out = folder / "mine"
    found = call(
        "calibrate", "-o", str(out), "--on", "dgx_h100_x8", *paths, "--step", "llama2_7b_train=1.9s", "--json"
    )
    return out, found.json, paths


def test_only_what_was_measured_differs_from_the_base(mine):
    folder, found, _ = mine
    machine, base = load_machine(folder / "machine.yaml"), load_machine("dgx_h100_x8")
    assert machine.device.spec.clock.sustained == 1_500_000_000
    # 360 Gb/s of payload in packets of 4,096 B with 26 B around each
    assert machine.spec.fabric[1].bandwidth == pytest.approx(45e9 * 4122 / 4096, rel=1e-3)
    assert machine.spec.fabric[0] == base.spec.fabric[0]
    assert machine.device.spec.hbm == base.device.spec.hbm
    assert (folder / "device.yaml").read_text().count("base: h100_sxm") == 1
    assert [row["kept"] for row in found["findings"]] == [True] * 3


def test_residuals_of_cases_held_out_fall_and_stand_in_the_files(mine):
    folder, found, _ = mine
    for row in found["findings"]:
        out = row["mean_abs_pct"]["held_out"]
        assert out["after"] < out["before"] and any(case["held_out"] for case in row["cases"])
    assert "all_reduce within a node (all_reduce.txt)" in (folder / "nccl.yaml").read_text()


def test_jobs_on_the_machine_say_what_it_was_calibrated_on_and_learn_from_its_steps(mine):
    folder, found, _ = mine
    here = call("run", "llama2_7b_train", "--on", str(folder / "machine.yaml"), "--json").json
    assert any("clocks under load" in line for line in here["priced_with"]["calibrated_on"])
    assert "this machine's own steps" in here["intervals"]["step"]["source"]
    assert found["steps"][0]["measured_s"] == 1.9
    text = call("run", "llama2_7b_train", "--on", str(folder / "machine.yaml")).out
    assert "calibrated on 4 clocks" in text


def test_forecasts_narrow_with_the_machines_own_steps():
    kind = JobKind("Megatron-LM 2025", "hopper", "bf16", experts=False, shares={"attention": 0.1})
    step = MeasuredStep(
        job="a", measured=Duration(11 * 10**11), simulated=Duration(10**12), software=kind.software,
        family=kind.family, format=kind.format, shares=dict(kind.shares),
    )  # fmt: skip
    alone, few, many = (posterior().ratio(kind, own_steps([step] * count)) for count in (0, 1, 8))
    assert alone[1] > few[1] > many[1]
    # ln(1.1) was measured: the more steps, the nearer the forecast
    assert abs(many[0] - 0.0953) < abs(few[0] - 0.0953) < abs(alone[0] - 0.0953)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("ib.txt", bandwidths(410.0), "is a utilisation of 1.02"),
        ("g.csv", "M,N,K,dtype,time_us\n8192,8192,8192,bf16,500\n", "is a utilisation of 2.05"),
        ("g.csv", "M,N,K,dtype,time_us\n8192,8192,x,bf16,500\n", "line 2: is no matrix product"),
        ("g.csv", "M,N,time_us\n1,1,1\n", "no column 'K'"),
        ("c.txt", dmon((2500, 99)), "has at most 1.98 GHz"),
        ("c.txt", dmon((1500, 180)), "allowed: a use up to 100 %"),
        ("c.txt", dmon((1500, 3)), "has no sample of SMCLK or pclk under load"),
        ("all_reduce.txt", nccl_text({2**30: 500.0}), "of the machine's links; allowed: up to 1"),
        ("all_reduce.txt", nccl_text({2**30: -5.0}), "has no row of a size"),
        ("all_reduce.txt", nccl_text({2**30: 9e3}, ranks=72), "72 ranks; dgx_h100_x8"),
        ("all_reduce.txt", nccl_text({2**30: 9e3}).replace("0.00 119", "0.00 300"), "is not size over"),
        ("what.txt", nccl_text({2**30: 9e3}).replace("all_reduce_perf", ""), "names no collective"),
        ("x.txt", "hello", "is no evidence that is read"),
    ],
)  # fmt: skip
def test_nonsense_is_refused_in_one_line(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    answer = call("calibrate", "-o", str(tmp_path / "out"), "--on", "dgx_h100_x8", str(tmp_path / name))
    problem = refused(answer)
    assert said.replace("dgx_h100_x8", load_machine("dgx_h100_x8").name) in problem
    assert not (tmp_path / "out").exists()


def test_what_is_there_is_kept_and_steps_must_be_possible(mine, tmp_path):
    folder, _, paths = mine
    assert "is there already; --force" in refused(
        call("calibrate", "-o", str(folder), "--on", "dgx_h100_x8", *paths)
    )
    command = ("calibrate", "-o", str(tmp_path), "--on", "dgx_h100_x8")
    for words, said in {
        (): "needs evidence",
        ("--step", "llama2_7b_train"): "allowed: JOB=TIME",
        ("--step", "llama2_7b_train=2ms"): "of the GPUs' peak; allowed: up to 1",
        ("--step", "llama2_7b_inference=2s"): "requests have no step",
    }.items():
        assert said in refused(call(*command, *words))
