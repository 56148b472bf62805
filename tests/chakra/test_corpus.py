"""Trace sets from elsewhere: each is read, or refused for a stated reason."""

from pathlib import Path

import pytest

from rapid_des.chakra import ReadOptions, check, convert_set, read_set, write_set
from rapid_des.chakra.source import discover
from rapid_des.errors import TraceError
from rapid_des.values import replace
from tests.chakra.test_round_trip import assert_same

ROOT = Path(__file__).parents[3] / "shared" / "traces"
SETS = sorted(path.parent for path in ROOT.glob("*/*/") for path in [path / "x"]) if ROOT.is_dir() else []
REFUSED = {
    "et_tarball": "unpack first",
    "reference": "no trace files",
    "raw": "no trace files",
    "pytorch_host_et_102": "PyTorch host execution trace",
}
MANY = {"standard_output_v003", "all_kinds_4", "json_trace"}
WITH_ERRORS = {
    "llama2-7b-tp2pp2dp2": {"unmatched message"},
    "one_comm_recv_node": {"no peer", "no size"},
    "one_comm_send_node": {"no peer", "no size"},
    "chakra": {"unknown collective", "no size"},
    "small_chakra": {"unknown collective", "no size"},
}

pytestmark = [pytest.mark.external, pytest.mark.skipif(not SETS, reason="no corpus beside the repository")]


def references(folder):
    if folder.name not in MANY:
        return [folder]
    prefixes = {".".join(path.name.split(".")[:-2]) for path in folder.glob("*.*.*")}
    return [folder / prefix for prefix in sorted(prefixes)]


@pytest.mark.parametrize("folder", SETS, ids=lambda path: path.name)
def test_a_set_is_read_or_refused_for_a_reason(folder, tmp_path):
    if folder.name in REFUSED:
        with pytest.raises(TraceError, match=REFUSED[folder.name]):
            read_set(folder)
        return
    for reference in references(folder):
        traces = read_set(reference)
        assert all(len(rank.nodes) for rank in traces.ranks)
        errors = {finding.kind for finding in check(reference) if finding.severity == "error"}
        assert errors <= WITH_ERRORS.get(reference.name, set())
        target = tmp_path / reference.name
        write_set(traces, target, "job")
        assert_same(traces, read_set(target))


MODERN = (
    "generated-STAGE/moe-ep8",
    "real-pytorch-DLRM-8gpu/dlrm8",
    "generated-chakra-text-converter/MLP_ModelParallel",
)


@pytest.mark.parametrize("name", MODERN)
def test_files_of_today_convert_to_the_same_bytes(name, tmp_path):
    originals = discover(ROOT / name).files.values()
    copies = convert_set(ROOT / name, tmp_path, "et", ReadOptions())
    assert [path.read_bytes() for path in copies] == [path.read_bytes() for path in originals]


@pytest.mark.parametrize(
    ("text", "original"),
    [
        ("custom_allreduce.3.json", "astra-sim/custom_ring_allreduce_8/custom_allreduce.3.et"),
        ("workload.0.json", "generated-STAGE/moe-ep8/workload.0.et"),
        ("v102.0.json", "real-pytorch-host-only/v102/v102.0.et"),
    ],
)
def test_jsonizers_text_means_the_same_as_its_original(text, original):
    from_text = read_set(ROOT / "generated-chakra-jsonizer" / text)
    from_original = read_set(ROOT / original)
    named = {name: from_original.groups[name] for name in from_text.groups}  # a group file may lie beside one
    assert_same(from_text, replace(from_original, groups=named))


def test_resnet_50_has_the_counts_of_its_index():
    traces = read_set(ROOT / "astra-sim" / "resnet50_DataParallel_64_nometa")
    assert len(traces.ranks) == 64
    assert sum(len(rank.nodes) for rank in traces.ranks) == 13760
    assert sum(len(rank.nodes.dependencies) for rank in traces.ranks) == 13696
