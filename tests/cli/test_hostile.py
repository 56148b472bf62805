"""Inputs that somebody wrote to break things: each ends in one clear line, in time, without a traceback."""

import gzip
import json
import os
import resource
import time
import tracemalloc
import zipfile
from typing import Any

import numpy as np
import pytest

from rapid_des.chakra import files, json_forms
from rapid_des.chakra.groups import load_groups
from rapid_des.chakra.source import discover
from rapid_des.errors import ConfigError, InputError, TraceError
from rapid_des.importers.infragraph.expansion import Expansion, read
from rapid_des.inputs import TRACE, read_input, unpack_input
from rapid_des.learned import load_learned
from rapid_des.learned.regressors import Forest
from rapid_des.network.collectives.algorithm_files import load_algorithm
from rapid_des.units import whole_number
from tests.cli.shell import call, refused
from validation.hostile.campaign import Outcome, inputs, run
from validation.hostile.samples import samples, written

SECONDS = 2
"""Processor seconds that all kinds together may take; seeds 0, 1, 2, … of each kind until they are spent."""
MOST_SEEDS = 40


def test_the_good_input_of_every_kind_is_accepted_and_a_campaign_finds_no_defect():
    kinds = samples()  # made once, in one worker: some kinds are files that a sweep or a search has written
    good = {kind: run(list(sample.command), sample.packed(sample.files)) for kind, sample in kinds.items()}
    assert {kind: outcome for kind, outcome in good.items() if outcome != Outcome("0")} == {}
    began, wrong = time.process_time(), []
    for seed in range(MOST_SEEDS):
        for kind, sample in kinds.items():
            if kind == "samples" and seed > 2:
                continue  # what is accepted is fitted, which takes a second
            if time.process_time() - began > SECONDS:
                break
            outcome = run(*inputs(kind, sample, seed))
            if outcome.problem:
                wrong.append((kind, seed, outcome))
    assert not wrong


@pytest.mark.parametrize(
    "text", ["²", "１２", "--5", "+-3", "1_0", "010", "1e3", "", " 1", "0x10", "9" * 22, "9" * 4301, "-1"]
)
def test_what_is_no_bounded_whole_number_is_refused(text):
    with pytest.raises(ValueError, match="is no whole number; allowed: 0 to 100"):
        whole_number(text, most=100)


COMMANDS = [
    ("operator gemm 100000000000000000000 1 1 --device h100_sxm", "not in the range"),
    ("operator grouped 1000000000000x1 8 8 --device h100_sxm", "'1000000000000' is no whole number"),
    ("operator grouped 8,² 8 8 --device h100_sxm", "'²' is no whole number"),
    ("operator softmax 8 8 --dtype fp4 --device a100_sxm_80gb", "has no fp4 arithmetic"),
    ("operator gemm 8 8 8 --device h100_sxm --library nobody", "'nobody' is no library of kernels"),
    ("topology bench dgx_a100 --chunks 16777216", "not in the range 1<=x<=4096"),
    ("topology show dgx_a100 --set machine.gpus_per_node=4000000", "gpus_per_node: 4000000; allowed: up to"),
    (
        "topology show dgx_a100 --set machine.collectives.default={algorithm:\u00a0ring}",
        "collectives.default",
    ),
    ("topology show dgx_a100 --set machine.fabric.²=1", "'²' is no item of this list"),
    ("topology show dgx_a100 --set machine.fabric.--5=1", "'--5' is no item of this list"),
    ("topology route dgx_a100 ² 1", "'²' names no node"),
    ("topology route dgx_a100 gpu99999999999999999999 1", "names no node"),
    ("topology route dgx_a100 010 1", "'010' names no node"),
    ("topology check dgx_a100 --fault gpu=010\u00a0down=true", "--fault"),
    ("device show h100_sxm --set device.family=../../../etc/hopper", "names no family"),
    ("device show h100_sxm --set device.constants.attention.default.softmax_ops=.nan", "no finite decimal"),
    ("topology show dgx_a100 --set machine.switching.protocol.payload=0B", "payload: 0 B; allowed: above 0"),
    ("trace stats workloads/traces/all_reduce_4 --dimensions 2,²", "'²' is no whole number"),
]


@pytest.mark.parametrize(("line", "told"), COMMANDS)
def test_hostile_words_are_named(line, told):
    assert told in refused(call(*line.split(" ")))


def test_thirty_thousand_brackets_are_too_deep(tmp_path):
    (tmp_path / "m.yaml").write_text("[" * 30_000)
    assert "more than 64 levels" in refused(call("topology", "show", tmp_path / "m.yaml"))
    deep = f"machine.fabric={'[' * 30_000}"
    assert "more than 64 levels" in refused(call("topology", "show", "dgx_a100", "--set", deep))


def test_a_wrong_fault_of_the_call_is_not_blamed_on_the_file():
    fault = "gpu=9 down=true"
    said = refused(call("topology", "show", "dgx_a100", "--fault", fault))
    assert "--fault 'gpu=9 down=true'" in said
    assert "faults[" not in said
    lossy = "all=links packet_loss=0.9999999999999 packet=1KiB retransmission=go_back_n"
    assert "packet_loss: 0.9999999999999 loses every" in refused(
        call("topology", "show", "dgx_a100", "--fault", lossy)
    )


def infragraph(tmp_path, **changes):
    tree = {
        "devices": [
            {"name": "d0", "components": [{"name": "x", "choice": "xpu", "count": 2**20}]},
            *(
                {"name": f"d{n}", "components": [{"name": f"d{n - 1}", "choice": "device", "count": 2**20}]}
                for n in range(1, 4)
            ),
        ],
        "instances": [{"name": "a", "device": "d0", "count": 2**24}],
    } | changes
    (tmp_path / "g.json").write_text(json.dumps(tree))
    return tmp_path / "g.json"


def many_to_many(tmp_path):
    device = {
        "name": "d0",
        "components": [{"name": "x", "choice": "xpu", "count": 2**12}],
        "links": [{"name": "l"}],
        "edges": [{"ep1": {"component": "x"}, "ep2": {"component": "x"}, "scheme": "many2many", "link": "l"}],
    }
    return infragraph(tmp_path, devices=[device], instances=[{"name": "a", "device": "d0", "count": 1}])


def test_small_files_that_ask_for_unbounded_work_are_refused_before_it(tmp_path):
    began = time.process_time()
    inside = [{"name": "a", "device": "d3", "count": 1}]
    for make, told in (
        (lambda: infragraph(tmp_path), "devices and components; allowed: up to 1,048,576"),
        (lambda: infragraph(tmp_path, instances=inside), "devices and components"),
        (lambda: many_to_many(tmp_path), "more than 2,097,152 edges"),
    ):
        path = make()
        with pytest.raises(ConfigError, match=told):
            Expansion(read(path), path)
    written = {"collective": "all_reduce", "members": 2, "blocks": 10**12, "transfers": []}
    (tmp_path / "w.json").write_text(json.dumps(written))
    (tmp_path / "x.xml").write_text(
        '<algo ngpus="1000000" coll="allreduce"><gpu id="0" i_chunks="1000000"/></algo>'
    )
    for name, told in (
        ("w.json", r"the proof's state is .*; allowed: 1,073,741,824"),
        ("x.xml", "GPUs x chunks"),
    ):
        with pytest.raises(ConfigError, match=told):
            load_algorithm(tmp_path / name)
    cube = "machine.fabric=[{name: x, shape: hypercube, size: 8000000, bandwidth: 1 GB/s, latency: 1 us}]"
    assert "links; allowed: up to" in refused(call("topology", "show", "dgx_a100", "--set", cube))
    assert time.process_time() - began < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 << 20


NODES = b"\x02\x08\x00" * (16 << 20)
"""Frames of a byte each, 48 MiB, which pack to 1/340."""


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("t.0.et.gz", NODES, "200 times its size, or 16,777,216 bytes, and in no case 4,294,967,296"),
        ("t.0.json", b'{"a": ' + b" " * (64 << 20), "bytes; allowed: 200 times its size"),
        ("t.0.et.gz", bytes(64 << 20), "more than 4096 empty frames"),
    ],
)  # fmt: skip
def test_a_bomb_in_gzip_is_no_trace(tmp_path, name, content, told):
    (tmp_path / name).write_bytes(gzip.compress(content, 9))
    assert told in refused(call("trace", "stats", tmp_path / "t"))


def test_gzip_has_an_absolute_bound_beside_that_of_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_MOST_UNPACKED", 1 << 20)
    (tmp_path / "t.0.et.gz").write_bytes(gzip.compress(NODES[: 6 << 20], 0))  # as large as what it holds
    assert "in no case 1,048,576" in refused(call("trace", "stats", tmp_path / "t"))


def test_json_is_read_no_further_than_its_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(json_forms, "LARGEST_JSON", 1 << 20)
    (tmp_path / "t.0.json").write_bytes(b'{"a": ' + b" " * (64 << 20))
    tracemalloc.start()
    assert "JSON of more than 1 MiB is not read" in refused(call("trace", "stats", tmp_path / "t"))
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


def test_what_is_no_regular_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "x.json")
    fifo = refused(call("topology", "bench", "dgx_a100", "--algorithm", tmp_path / "x.json"))
    assert "no regular file" in fifo
    assert "/dev/zero" in refused(call("run", "/dev/zero", "--on", "dgx_a100"))
    with pytest.raises(TraceError, match="no regular file"):
        load_groups(tmp_path / "x.json")
    for rank in range(2):
        (tmp_path / f"t.{rank}.et").write_bytes(b"\x07\x0a\x050.0.4")
    call("trace", "stats", tmp_path / "t")  # the FIFO beside the traces is not waited for


def test_a_small_file_is_read_into_little_memory(tmp_path):
    (tmp_path / "t").write_bytes(b"x" * 100)
    (tmp_path / "t.gz").write_bytes(gzip.compress(b"y" * 100))
    tracemalloc.start()
    assert read_input(tmp_path / "t", TRACE) == b"x" * 100
    assert unpack_input(tmp_path / "t.gz", TRACE) == b"y" * 100
    assert (
        tracemalloc.get_traced_memory()[1] < 4 << 20
    )  # a trace may have 4 GiB, and `read` takes what it may need
    tracemalloc.stop()


def test_ranks_in_names_of_files_are_bounded(tmp_path):
    (tmp_path / f"t.{'2' * 22}.et").write_bytes(b"")
    with pytest.raises(TraceError, match="the rank in its name is too large; allowed: 0 to 16777215"):
        discover(tmp_path)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"1": [true]}', "is no list of ranks"),
        ('{"1": [99999999999999999999]}', "is no list of ranks"),
        ('{"1": [NaN]}', "NaN is no number of JSON"),
        ("[" * 100_000, "nested too deep"),
        (f'{{"1": [{"9" * 5000}]}}', "too long a number"),
    ],
)
def test_group_files_are_read_with_their_types(tmp_path, content, told):
    (tmp_path / "g.json").write_text(content)
    with pytest.raises(TraceError, match=told):
        load_groups(tmp_path / "g.json")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"directed": "-1 us"}, "directed: '-1 us' is not one of true, false"),
        ({"nodes": [{"id": 0}]}, "nodes: '1' has links and does not stand here"),
        ({"nodes": 7}, "nodes: must be a list"),
        ({"links": [{"source": True, "target": 1}]}, "edge 0: source: True is no text"),
        ({"links": [{"source": 0, "target": 1, "latency": "１２ us"}]}, "is not a quantity"),
    ],
)
def test_node_link_graphs_are_read_with_their_types(tmp_path, change, told):
    tree = {"nodes": [{"id": 0}, {"id": 1}], "links": [{"source": 0, "target": 1}]} | change
    (tmp_path / "g.json").write_text(json.dumps(tree))
    fabric = "[{name: g, shape: graph, size: 2, bandwidth: 1 GB/s, latency: 1 us, file: %s}]" % (
        tmp_path / "g.json"
    )
    assert told in refused(call("topology", "show", "dgx_a100", "--set", f"machine.fabric={fabric}"))


@pytest.mark.parametrize(
    ("column", "value"),
    [("left", 0), ("right", 3), ("left", -1), ("feature", 99), ("threshold", np.nan), ("roots", 5)],
)
def test_a_learned_tree_that_is_none_is_refused(column, value):
    columns: dict[str, Any] = {
        "roots": np.array([0], np.int32), "feature": np.array([0, -1, -1], np.int16),
        "threshold": np.zeros(3), "left": np.array([1, 0, 0], np.int32),
        "right": np.array([2, 0, 0], np.int32), "value": np.zeros(3, np.float32),
    }  # fmt: skip
    Forest(**columns, scale=1.0, offset=0.0).check(features=5)
    columns[column][0] = value
    with pytest.raises(ValueError, match="tree"):
        Forest(**columns, scale=1.0, offset=0.0).check(features=5)


@pytest.mark.parametrize(
    ("kind", "old", "new", "told"),
    [
        ("astra system", '"local-mem-bw": 1600', '"local-mem-bw": 1e-300', "local-mem-bw: the reduction of"),
        (
            "astra system",
            '"preferred-dataset-splits": 4',
            '"preferred-dataset-splits": 1000000',
            "1000000 is not a whole number from 1 to 4,096",
        ),
        ("trace json", '"NodeType": 4', '"NodeType": 1e999', "workload_graph[0]: cannot convert float inf"),
        ("samples", "operator,m", "operator\x01,m", "no column 'operator'"),
    ],
)
def test_what_the_long_campaign_found_is_refused(tmp_path, kind, old, new, told):
    sample = written()[kind]
    for name, content in sample.files.items():
        (tmp_path / name).write_bytes(content)
    attacked = tmp_path / sample.attacked
    text = attacked.read_text().replace(old, new)
    assert text != attacked.read_text()
    attacked.write_text(text.replace("\n", ",7\n") if kind == "samples" else text)
    assert told in refused(call(*[word.replace("@", str(tmp_path)) for word in sample.command]))


KEYS = [
    ("keys job", 2, ["job.host.tensor_rank=1 s"], "host.tensor_rank: an issue takes at most 1 s; with tp 2"),
    ("keys job", 2, ["job.host.kernel=1 s", "machine.host_speed=0.5"], "at host_speed 0.5 it is more"),
    ("keys served", 0, ["job.inference.prefill_tokens=16"], ""),  # chunks of prompts that have no head
    ("keys served", 0, ["job.inference={requests: [{prompt_length: 5, output_length: 0}]}"], ""),
]


@pytest.mark.parametrize("mode", ["hierarchical", "analytical"])
@pytest.mark.parametrize(("kind", "code", "settings", "told"), KEYS)
def test_what_drawn_keys_found_is_refused_or_run(tmp_path, kind, code, settings, told, mode):
    sample = written()[kind]
    for name, content in sample.files.items():
        (tmp_path / name).write_bytes(content)
    given = [word for setting in settings for word in ("--set", setting)]
    words = [word.replace("@", str(tmp_path)) for word in sample.command]
    answer = call(*words, *given, "--mode", mode)
    assert answer.code == code, answer
    assert told in answer.err


def test_a_few_gpus_of_a_huge_ring_are_looked_at_alone():
    fabric = "machine.fabric=[{name: r, shape: ring, size: 200000, bandwidth: 25 GB/s, latency: 1 us}]"
    began = time.process_time()
    bench = call("topology", "bench", "torus_2d_a100", "--set", fabric, "--gpus", "4", "--sizes", "64KiB")
    assert bench.code == 0
    assert time.process_time() - began < 4  # 0.7 s; with every node's distance 5 s


def test_every_flipped_bit_of_a_learned_file_is_an_input_error_or_nothing(tmp_path):
    content = written()["learned"].files["x.npz"]
    for bit in range(0, 8 * len(content), 97):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        (tmp_path / "x.npz").write_bytes(changed)
        try:
            load_learned(tmp_path / "x.npz")
        except InputError as error:
            assert "no file of learned operators" in str(error) or "format" in str(error)


def test_a_learned_file_of_too_large_arrays_is_not_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("head.npy", bytes(300 << 20))
    with pytest.raises(InputError, match="unpacks to 314,572,800 bytes; allowed: 268,435,456"):
        load_learned(tmp_path / "x.npz")


@pytest.mark.parametrize("cell", ["-5", "nan", "inf", "1e999", "１２"])
def test_samples_of_impossible_sizes_are_refused(tmp_path, cell):
    (tmp_path / "s.csv").write_text(f"operator,m,time_us\ngemm,{cell},1\n")
    said = refused(call("device", "fit", tmp_path / "s.csv", tmp_path / "o.npz", "--fallback", "native"))
    assert "line 2" in said
    assert "is no number; allowed: 0 to 1e+15" in said
    assert not (tmp_path / "o.npz").exists()


def test_relative_paths_reach_devices_beside_a_folder_and_nothing_that_is_none(tmp_path):
    for folder in ("machines", "devices"):
        (tmp_path / folder).mkdir()
    (tmp_path / "devices" / "mine.yaml").write_text("base: a100_sxm_80gb\nname: mine\nsms: 100\n")
    (tmp_path / "secret.txt").write_text("password\n")
    machine = tmp_path / "machines" / "m.yaml"
    text = written()["machine"].files["m.yaml"].decode()
    machine.write_text(text.replace("a100_sxm_80gb", "../devices/mine.yaml"))
    assert call("topology", "show", machine).code == 0
    for path in ("../secret.txt", "/dev/zero"):
        machine.write_text(text.replace("a100_sxm_80gb", path))
        said = refused(call("topology", "show", machine))
        assert "password" not in said
    machine.write_text(text.replace("shape: ring, size: 2,", "shape: graph, size: 2, file: ../secret.txt,"))
    assert "leads out of" in refused(call("topology", "show", machine))
    assert "names no family" in refused(
        call("topology", "show", machine, "--set", "device.family=../../secret")
    )
