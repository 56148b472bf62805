"""Files that are wrong: one place, one value, what is allowed, exit code 2; never a traceback."""

import pytest

from tests.cli.shell import call, refused

MACHINE = """
name: small
device: a100_sxm_80gb
gpus_per_node: 4
fabric:
  - {name: nvlink, shape: switch, size: 4, bandwidth: 300 GB/s, latency: 350 ns}
  - {name: ring, shape: ring, size: 2, bandwidth: 25 GB/s, latency: 1 us}
routing: {order: innermost_first, tie: positive}
switching: {mode: cut_through, segment: 4 KiB}
collectives: {default: ring}
"""
JOB = """
model: llama2_7b
phase: training
parallelism: {tp: 2, pp: 2, dp: 2, sequence_parallel: true}
training: {global_batch: 8, micro_batch: 1, sequence_length: 1024, schedule: 1f1b, zero_stage: 1}
"""
MODEL = """
hidden: 4096
layers: 32
attention: {heads: 32, kv_heads: 32}
feed_forward: {activation: swiglu, hidden: 11008}
norm: rms_norm
position: rope
vocabulary: 32000
max_positions: 4096
tied_embeddings: false
"""

LINK = "links: [{source: 0, both_directions: true, destination: %s}]\ncollectives:"

# (what is replaced, by what, what the message must name)
BAD_MACHINES = [
    ("name: small", "", "missing key 'name'"),
    ("name: small", "name: 7", "name"),
    ("name: small", "name: small\nname: again", "line 3, column 1: not valid YAML: the key 'name'"),
    ("name: small", "nmae: small", "unknown key 'nmae'; did you mean 'name'?"),
    ("name: small", "\tname: small", "not valid YAML"),
    ("name: small", "name: [small", "not valid YAML"),
    ("name: small", "name: small\n1: x", "the key 1 is not text"),
    ("name: small", "name: *nobody", "not valid YAML"),
    ("name: small", "name: !!python/object:os.system x", "not valid YAML"),
    ("name: small", "name: &a [*a]", "line 2, column 11: not valid YAML"),
    ("device: a100_sxm_80gb", "device: a100_smx_80gb", "did you mean 'a100_sxm_80gb'?"),
    ("device: a100_sxm_80gb", "device: ''", "device"),
    ("device: a100_sxm_80gb", "device: {}", "device"),
    ("gpus_per_node: 4", "gpus_per_node: 0", "gpus_per_node"),
    ("gpus_per_node: 4", "gpus_per_node: -8", "gpus_per_node"),
    ("gpus_per_node: 4", "gpus_per_node: 4.5", "gpus_per_node"),
    ("gpus_per_node: 4", "gpus_per_node: four", "gpus_per_node"),
    ("gpus_per_node: 4", "gpus_per_node: true", "gpus_per_node"),
    ("latency: 1 us", "latency: 9223372036854775807 ps", "dimension ring: latency: 9223372 s; allowed: 0 to"),
    ("latency: 1 us", "latency: 61 min", "dimension ring: latency: 3660 s; allowed: 0 to 3600 s"),
    ("25 GB/s", "2000 PB/s", "dimension ring: bandwidth: 2000000 TB/s; allowed: 0 to 1000000 TB/s"),
    ("collectives:", LINK % "4, latency: 2 h" , "latency: 7200 s; allowed: 0 to 3600 s"),
    ("shape: switch", "shape: tours", "fabric[0].shape: 'tours' is not one of ring"),
    ("shape: switch", "shape: 3", "fabric[0].shape"),
    (
        "{default: ring}",
        "{all_reduce: [ring, nvls]}",
        "collectives.all_reduce: 'nvls' works inside switches, of which dimension ring has none",
    ),
    ("{default: ring}", "{default: nvsl}", "'nvsl' is not a collective algorithm; allowed: ring, "),
    ("shape: switch", "shap: switch", "fabric[0]"),
    ("size: 4", "size: 0", "fabric[0].size"),
    ("size: 4", "size: -4", "fabric[0].size"),
    ("size: 4", "size: 4.0", "fabric[0].size"),
    ("size: 4", "size: '4'", "fabric[0].size"),
    ("size: 4", "size: [4, 4]", "fabric[0].size"),
    ("size: 4", "size: 99999999999", "fabric[0].size"),
    ("size: 4", "size: 1e99", "fabric[0].size"),
    ("size: 4", "size: .nan", "no finite decimal number"),
    ("size: 2,", "size: 16777216,", ""),
    ("bandwidth: 300 GB/s", "bandwidth: 300", "300 is not a quantity such as '450 GB/s'"),
    ("bandwidth: 300 GB/s", "bandwidth: 300 GB", "unit 'GB'; allowed:"),
    ("bandwidth: 300 GB/s", "bandwidth: 300 furlongs", "unit 'furlongs'"),
    ("bandwidth: 300 GB/s", "bandwidth: -3 GB/s", "out of range"),
    ("bandwidth: 300 GB/s", "bandwidth: 0 GB/s", "bandwidth"),
    ("bandwidth: 300 GB/s", "bandwidth: 0.0000001 b/s", "s on one link; allowed: 100000 s"),
    ("bandwidth: 300 GB/s", "bandwidth: 1e400 GB/s", "out of range"),
    ("bandwidth: 300 GB/s", "bandwidth: nan GB/s", "not a quantity"),
    ("bandwidth: 300 GB/s", "bandwidth: inf GB/s", "not a quantity"),
    ("bandwidth: 300 GB/s", "bandwidth: ''", "not a quantity"),
    ("bandwidth: 300 GB/s", "bandwidth: GB/s", "not a quantity"),
    ("bandwidth: 300 GB/s", "bandwidth: null", "bandwidth"),
    ("bandwidth: 300 GB/s", "bandwidth: [300 GB/s]", "bandwidth"),
    ("bandwidth: 300 GB/s", "bandwith: 300 GB/s", "did you mean 'bandwidth'?"),
    ("latency: 350 ns", "latency: 350", "not a quantity such as '1.2 us'"),
    ("latency: 350 ns", "latency: 350 NS", "unit 'NS'"),
    ("latency: 350 ns", "latency: -1 ns", "out of range"),
    ("latency: 350 ns", "latency: 999999999999 h", "out of range"),
    (", latency: 350 ns", "", "missing key 'latency'"),
    (", bandwidth: 300 GB/s, latency: 350 ns", "", "fabric[0]: missing keys 'bandwidth', 'latency'"),
    ("shape: switch, size: 4", "shape: torus, size: []", "fabric[0].size"),
    ("shape: switch, size: 4", "shape: torus, size: [2, 0]", "fabric[0].size"),
    ("shape: switch, size: 4", "shape: torus, size: [16777216, 16777216]", ""),
    ("shape: switch, size: 4", "shape: mesh, size: [2,2,2,2,2,2,2,2,2]", "fabric[0].size"),
    ("shape: switch, size: 4", "shape: fully_connected, size: 16777216", ""),
    ("shape: switch, size: 4", "shape: fat_tree, size: 4, levels: 5, radix: 4, oversubscription: 1", ""),
    ("shape: switch, size: 4", "shape: fat_tree, size: 4, levels: 2, radix: 3, oversubscription: 1", ""),
    ("shape: switch, size: 4", "shape: clos, size: 4, leaf_size: 3, spines: 1", "uplink"),
    ("shape: switch, size: 4", "shape: graph, size: 4, file: nowhere.csv", "nowhere.csv"),
    ("shape: switch, size: 4", "shape: ring, size: 4, nic: {gpus: 1}", "nic"),
    ("shape: ring", "shape: ring, spans_inner: true", "spans_inner"),
    ("fabric:", "fabric: []\nfabrics:", "fabrics"),
    ("fabric:", "fabrik:", "did you mean 'fabric'?"),
    ("order: innermost_first", "order: sideways", "routing.order"),
    ("tie: positive", "tie: negative", "routing.tie"),
    (", tie: positive", "", "missing key 'tie'"),
    ("mode: cut_through", "mode: teleport", "switching.mode"),
    (", segment: 4 KiB", "", "switching.segment"),
    ("segment: 4 KiB", "segment: 0 B", "switching.segment"),
    ("segment: 4 KiB", "segment: 4 us", "switching.segment"),
    ("mode: cut_through", "mode: fluid", "switching.segment"),
    ("default: ring", "default: rign", "collectives.default: 'rign' is not a collective algorithm"),
    ("default: ring", "all_reduce: {algorithm: [ring, rong]}", "collectives.all_reduce: 'rong'"),
    ("default: ring", "all_reduced: ring", "did you mean 'all_reduce'?"),
    ("default: ring", "default: []", "collectives"),
    ("default: ring", "default: 7", "collectives"),
    ("collectives:", LINK % "77, latency: 1 us", "77"),
    ("collectives:", LINK % "5, latency: 1 us", "5"),
    ("collectives:", LINK % "4", "links[0]"),
    ("collectives:", "faults: [{link: [0, 77]}]\ncollectives:", "faults"),
    ("collectives:", "faults: [{lnik: 0-1}]\ncollectives:", "faults"),
    ("collectives:", "faults: 3\ncollectives:", "faults"),
    ("collectives:", "collectives: 3\nx:", "collectives: 3 is not a mapping"),
]  # fmt: skip

BAD_JOBS = [
    ("model: llama2_7b", "model: lama2_7b", "did you mean 'llama2_7b'?"),
    ("model: llama2_7b", "model: 7", "model"),
    ("model: llama2_7b", "", "missing key 'model'"),
    ("phase: training", "phase: pretraining", "phase: 'pretraining' is not one of"),
    ("phase: training", "phase: inference", "inference"),
    ("phase: training", "phse: training", "did you mean 'phase'?"),
    ("tp: 2", "tp: 0", "parallelism.tp"),
    ("tp: 2", "tp: -2", "parallelism.tp"),
    ("tp: 2", "tp: 2.5", "parallelism.tp"),
    ("tp: 2", "tp: two", "parallelism.tp"),
    ("tp: 2", "tp: 3", "3"),
    ("tp: 2", "tp: 1024", "1024"),
    ("tp: 2", "tp: 99999999999999999999", "tp"),
    ("tp: 2", "xp: 2", "unknown key 'xp'"),
    ("tp: 2, pp: 2, dp: 2, sequence_parallel: true", "pp: 33", "33"),
    ("pp: 2", "pp: 64", "64"),
    ("dp: 2", "dp: 4", "16"),
    ("dp: 2", "dp: 3", ""),
    ("dp: 2", "dp: 2, ep: 2", "ep"),
    ("dp: 2", "dp: 2, order: [tp, tp, ep, dp, pp]", "order"),
    ("dp: 2", "dp: 2, order: [tp, pp]", "order"),
    ("dp: 2", "dp: 2, order: [tp, cp, ep, dp, xx]", "order"),
    ("dp: 2", "dp: 2, chunks: 3", "chunks"),
    ("dp: 2", "dp: 2, chunks: 1000", "chunks"),
    ("dp: 2", "dp: 2, layers: [1, 2]", "layers"),
    ("dp: 2", "dp: 2, layers: odd", "layers"),
    ("dp: 2", "dp: 2, layers: [-1, 33]", "layers"),
    ("sequence_parallel: true", "sequence_parallel: yes please", "sequence_parallel"),
    ("global_batch: 8", "global_batch: 0", "global_batch"),
    ("global_batch: 8", "global_batch: 7", "7"),
    ("global_batch: 8", "global_batch: 8 GB", "global_batch"),
    ("micro_batch: 1", "micro_batch: 3", "3"),
    ("micro_batch: 1", "micro_batch: 16", "16"),
    ("sequence_length: 1024", "sequence_length: 0", "sequence_length"),
    ("sequence_length: 1024", "sequence_length: 1023", "1023"),
    ("sequence_length: 1024", "sequence_length: 1000000", "sequence_length"),
    ("schedule: 1f1b", "schedule: 2f2b", "training.schedule"),
    ("schedule: 1f1b", "schedule: interleaved_1f1b", "chunks"),
    ("zero_stage: 1", "zero_stage: 4", "zero_stage"),
    ("zero_stage: 1", "zero_stage: -1", "zero_stage"),
    ("zero_stage: 1", "zero_stage: 1, optimizer: sgdm", "optimizer"),
    ("zero_stage: 1", "zero_stage: 1, recompute: half", "recompute"),
    ("zero_stage: 1", "zero_stage: 1, bucket_parameters: 0", "bucket_parameters"),
    ("training: {", "inference: {", "inference"),
    ("training: {", "trainig: {", "did you mean 'training'?"),
    ("phase: training", "phase: training\nprecision: {activations: bf17}", "precision.activations"),
    ("phase: training", "phase: training\nprecision: {activation: bf16}", "did you mean 'activations'?"),
    ("phase: training", "phase: training\nfusion: cold", "fusion"),
    ("phase: training", "phase: training\nattention: flsh", "attention"),
    ("phase: training", "phase: training\nvocabulary_multiple: 0", "vocabulary_multiple"),
    ("phase: training", "phase: training\nmemory_reserve: 3", "memory_reserve"),
    ("phase: training", "phase: training\nmemory_reserve: 3 GB/s", "memory_reserve"),
]  # fmt: skip

BAD_MODELS = [
    ("hidden: 4096", "hidden: 0", "hidden"),
    ("hidden: 4096", "hidden: 4095", "4095"),
    ("hidden: 4096", "hidden: four", "hidden"),
    ("layers: 32", "layers: -1", "layers"),
    ("layers: 32", "", "missing key 'layers'"),
    ("heads: 32,", "heads: 31,", "31"),
    ("kv_heads: 32", "kv_heads: 33", "33"),
    ("kv_heads: 32", "kv_heads: 0", "kv_heads"),
    ("attention: {", "atention: {", "did you mean 'attention'?"),
    ("swiglu", "swigul", "did you mean 'swiglu'?"),
    ("norm: rms_norm", "norm: abnorm", "norm"),
    ("position: rope", "position: ropes", "position"),
    ("vocabulary: 32000", "vocabulary: 1.5", "vocabulary"),
    ("max_positions: 4096", "max_positions: 16", "16"),
    ("tied_embeddings: false", "tied_embeddings: 3", "tied_embeddings"),
]  # fmt: skip

BAD_CONTENTS = {
    "empty": b"",
    "blank": b"\n\n  \n",
    "comment": b"# nothing\n",
    "list": b"- a\n- b\n",
    "text": b"just words",
    "number": b"42",
    "null": b"null",
    "binary": bytes(range(256)),
    "utf16": "name: x".encode("utf-16"),
    "nul": b"name: \x00",
    "json_cut": b'{"name": "x", ',
    "two_documents": b"name: a\n---\nname: b\n",
    "deep": b"a: " + b"[" * 3000,
    "merge": b"<<: 3\nname: x\n",
    "date": b"2020-01-01: x\n",
    "bomb": b"a: &a [x]\n" + b"".join(b"%c: &%c [%s]\n" % (c, c, b"*%c," % (c - 1) * 9) for c in b"bcdefgh"),
}  # fmt: skip


@pytest.fixture
def files(tmp_path):
    """Write a job, a machine and a model that go together; return their folder."""
    for name, text in (("machine", MACHINE), ("job", JOB), ("model", MODEL)):
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


def test_the_files_without_damage_run(files):
    text = (files / "job.yaml").read_text().replace("llama2_7b", "model.yaml")
    (files / "job.yaml").write_text(text)
    assert call("run", files / "job.yaml", "--on", files / "machine.yaml", "--mode", "analytical").code == 0


def damage(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1, old
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(("old", "new", "said"), BAD_MACHINES)
def test_bad_machine_files_are_refused_by_name(files, old, new, said):
    path = files / "machine.yaml"
    damage(path, old, new)
    text = refused(call("run", files / "job.yaml", "--on", path), 2)
    assert str(files) in text or "small" in text
    assert said in text


@pytest.mark.parametrize(("old", "new", "said"), BAD_JOBS)
def test_bad_job_files_are_refused_by_name(files, old, new, said):
    path = files / "job.yaml"
    damage(path, old, new)
    text = refused(call("run", path, "--on", files / "machine.yaml"), 2)
    assert said in text


@pytest.mark.parametrize(("old", "new", "said"), BAD_MODELS)
def test_bad_model_files_are_refused_by_name(files, old, new, said):
    damage(files / "job.yaml", "llama2_7b", "model.yaml")
    damage(files / "model.yaml", old, new)
    text = refused(call("run", files / "job.yaml", "--on", files / "machine.yaml"), 2)
    assert said in text


@pytest.mark.parametrize("kind", ["machine", "job", "model"])
@pytest.mark.parametrize("content", BAD_CONTENTS.values(), ids=BAD_CONTENTS)
def test_files_that_are_no_mapping_of_keys_are_refused_by_name(files, kind, content):
    if kind == "model":
        damage(files / "job.yaml", "llama2_7b", "model.yaml")
    (files / f"{kind}.yaml").write_bytes(content)
    text = refused(call("run", files / "job.yaml", "--on", files / "machine.yaml"), 2)
    assert f"{kind}.yaml" in text


@pytest.mark.parametrize("content", BAD_CONTENTS.values(), ids=BAD_CONTENTS)
def test_device_files_that_are_no_mapping_of_keys_are_refused_by_name(files, content):
    damage(files / "machine.yaml", "a100_sxm_80gb", "device.yaml")
    (files / "device.yaml").write_bytes(content)
    text = refused(call("run", files / "job.yaml", "--on", files / "machine.yaml"), 2)
    assert "device.yaml" in text
