"""The study files that ship: they read from anywhere, and what they claim of their fabrics holds."""

import pytest

from rapid_des.bounded_cache import BoundedCache
from rapid_des.config.specs import preset_names
from rapid_des.studies.spaces import load_study

COUNTS = {"splits_64": 72, "fabrics_64": 24, "gpu_variants": 168, "memory": 96}


@pytest.mark.parametrize("name", preset_names("study"))
def test_a_study_that_ships_reads_from_anywhere(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    study = load_study(name)
    assert study.count() == COUNTS.get(name, study.count()) > 0


def test_the_fabrics_cost_the_same_in_links():
    # 64 GPUs of 300 GB/s each way: what all directed links carry together, within the rounding of a rate
    for case in load_study("fabrics_64").cases():
        _, machine = case.point.resolved(BoundedCache())
        assert int(machine.fabric.bandwidth.sum()) == pytest.approx(64 * 300e9, rel=1e-3), case.labels


def test_a_notebook_shows_the_axes_of_a_study():
    axes = {"tp": [1, 2], "a<b": {"one": {}, "two": {"job.training.micro_batch": 2}}}
    shown = load_study({"job": "llama2_7b_train", "on": "dgx_a100", "axes": axes})._repr_html_()
    assert "<td>tp</td><td>2</td>" in shown
    assert "a&lt;b" in shown
