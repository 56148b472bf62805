"""Host traces of PyTorch beside profiles: shapes of products by their order, in both schemas."""

import json

import pytest

from rapid_des.errors import TraceError
from rapid_des.profiles import read_run
from tests.cli.shell import call, refused
from tests.profiles.test_profiles import event, launch, written

SHAPES = [[4096, 1024], [1024, 512]]
FORMATS = ["Tensor(c10::BFloat16)", "Tensor(c10::BFloat16)"]


def profile(tmp_path, iterations=2):
    events = []
    for number in range(2 * iterations):
        at, name = 100 * number, ("aten::mm", "aten::gelu")[number % 2]
        events.append(event(name, at, 5, "cpu_op", **{"External id": number}))
        events.append(launch(number, at))
        events.append(event("sgemm", at + 5, 20, stream=7, correlation=number, **{"External id": number}))
    return written(tmp_path, events, deviceProperties=[{"name": "NVIDIA H100 80GB HBM3"}])


def host(tmp_path, many=1, *, new=False):
    old = {"input_shapes": SHAPES, "input_types": FORMATS, "inputs": []}
    today = {"inputs": {"shapes": SHAPES, "types": FORMATS}}
    nodes = [{"name": "aten::mm", "id": n, **(today if new else old), "rf_id": n} for n in range(many)]
    path = tmp_path / "host.json"
    path.write_text(json.dumps({"schema": "1.0.1", "nodes": nodes}))
    return path


@pytest.mark.parametrize("new", [False, True])
def test_products_take_the_shapes_of_the_host_trace(tmp_path, new):
    (found,) = read_run([host(tmp_path, new=new), profile(tmp_path)])
    assert list(found.events.products) == [0, 2]
    assert "[4096, 1024], [1024, 512]" in found.events.products[2]


def test_traces_of_other_runs_are_refused(tmp_path):
    with pytest.raises(TraceError, match="has 2 aten::mm, which is no multiple of the host trace's 3"):
        read_run([host(tmp_path, 3), profile(tmp_path)])
    with pytest.raises(TraceError, match="name the profile of the same rank behind it"):
        read_run([host(tmp_path)])


def test_commands_take_both_files(tmp_path):
    files = str(host(tmp_path)), str(profile(tmp_path))
    assert call("profile", "show", *files, "--json").json["ranks"][0]["device_events"] == 4
    assert call("replay", *files, "--json").json["device_events"] == 4
    words = ("calibrate", "-o", str(tmp_path / "out"), *files, "--on")
    assert "is of NVIDIA H100 80GB HBM3; the machine's GPUs are A100" in refused(call(*words, "dgx_a100"))
    assert "1 shapes of products in bf16 are too few" in refused(call(*words, "dgx_h100"))
