"""What pricing a job says about the models that it used."""

import pytest

from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.simulation import simulate

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A machine whose device has samples of GEMMs, and of a kernel whose name is spelled wrongly."""
    from rapid_des.learned import write_samples
    from rapid_des.learned.fit import fit_file

    folder = tmp_path_factory.mktemp("sampled")
    sizes = [
        {"m": m, "n": n, "k": k, "batch": 1, "time_us": 5 + m * n * k / 2**30}
        for m in (1, 2**15)
        for n in (1, 2**9, 2**16)
        for k in (1, 2**16)
    ]
    rows = [{"operator": name, **row} for name in ("gemm/fp16", "gem/fp16") for row in sizes]
    write_samples(folder / "samples.csv", rows)
    fit_file(folder / "samples.csv", fallback="roofline").save(folder / "model.npz")
    (folder / "device.yaml").write_text("base: a100_sxm_80gb\noperators: learned:model.npz\n")
    return load_machine("dgx_a100", settings=[("device", str(folder / "device.yaml"))])


@pytest.mark.parametrize("mode", ["flattened", "hierarchical"])
def test_a_result_says_where_a_file_of_measurements_and_the_job_missed_each_other(machine, mode):
    settings = [("parallelism.tp", "2"), ("inference.output_length", "3"), ("inference.batch", "1")]
    result = simulate(load_job("llama2_7b_inference", settings=settings), machine, mode=mode)
    notes = [note for note in result.notes if note.startswith("learned:")]
    assert notes[0] == "learned:model.npz has samples of what nothing here asks for: gem/fp16"
    assert "learned:model.npz left to the roofline model: " in notes[1]
    assert "rms_norm/forward/fp16 (no samples)" in notes[1]
    assert len(notes) == 2
