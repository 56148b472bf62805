"""Exports of Nsight Systems: the same events as SQLite, as JSON lines and as Kineto make the same report."""

import json
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from rapid_des.errors import TraceError
from rapid_des.profiles import is_profile, profile_report, read_profiles, replay_step
from tests.profiles.test_profiles import event, written

THREAD = (1 << 56) | (77 << 24) | 5
"""A global thread id: bits of the machine, the process 77, its thread 5."""
PROCESS = THREAD & ~0xFFFFFF
KERNELS = [
    ("sgemm_128", 10_000, 20_000, 1, 7),
    ("ncclDevKernel_AllReduce", 22_000, 30_000, 2, 9),
    ("gelu", 60_000, 65_000, 3, 7),
]
CALLS = [
    ("cudaLaunchKernel_v7000", 5_000, 6_000, 1),
    ("cuLaunchKernelEx", 7_000, 8_000, 2),
    ("cudaLaunchKernel_v7000", 50_000, 51_000, 3),
    ("cudaStreamSynchronize_v3020", 31_000, 40_000, 4),
]
STEPS = [("iteration 1", 4_000, 45_000), ("iteration 2", 48_000, 70_000)]
TEXTS = list(dict.fromkeys(row[0] for row in (*KERNELS, *CALLS, *STEPS)))
OF = {text: number for number, text in enumerate(TEXTS)}


def sqlite(path):
    """Write an export with the tables and columns of NVIDIA's schema reference that matter here."""
    tables: dict[str, list[tuple[Any, ...]]] = {
        "StringIds (id, value)": [(number, text) for text, number in OF.items()],
        "CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId, globalPid, shortName)": [
            (s, e, 0, stream, key, PROCESS, OF[name]) for name, s, e, key, stream in KERNELS
        ],
        "CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId)": [
            (s, e, THREAD, key, OF[name]) for name, s, e, key in CALLS
        ],
        "CUPTI_ACTIVITY_KIND_MEMCPY (start, end, deviceId, streamId, correlationId, globalPid, copyKind)": [
            (32_000, 33_000, 0, 7, 9, PROCESS, 1)
        ],
        "NVTX_EVENTS (start, end, text, textId, globalTid)": [
            (s, e, None, OF[name], THREAD) for name, s, e in STEPS
        ],
        "TARGET_INFO_GPU (id, name)": [(0, "NVIDIA H100 80GB HBM3")],
    }
    with closing(sqlite3.connect(path)) as data, data:
        for table, rows in tables.items():
            data.execute(f"CREATE TABLE {table}")
            marks = ", ".join("?" * len(rows[0]))
            data.executemany(f"INSERT INTO {table.partition(' ')[0]} VALUES ({marks})", rows)
    return path


def lines(path):
    """Write the same as JSON lines: numbers as text, and all texts in the last line."""

    def on_device(span, key, stream, part):
        start, end = map(str, span)
        where = {"deviceId": 0, "streamId": str(stream), "globalPid": str(PROCESS)}
        return {"CudaEvent": {"startNs": start, "endNs": end, "correlationId": key, **where, **part}}

    rows = [
        on_device((s, e), key, stream, {"kernel": {"shortName": str(OF[name])}})
        for name, s, e, key, stream in KERNELS
    ]
    rows.append(on_device((32_000, 33_000), 9, 7, {"memcpy": {"sizebytes": "4096", "copyKind": 1}}))
    for name, s, e, key in CALLS:
        call = {"startNs": str(s), "endNs": str(e), "correlationId": key, "name": str(OF[name])}
        rows.append({"TraceProcessEvent": {**call, "globalTid": str(THREAD)}})
    for name, s, e in STEPS:
        mark = {"Timestamp": str(s), "EndTimestamp": str(e), "Text": name, "GlobalTid": str(THREAD)}
        rows.append({"NvtxEvent": mark})
    path.write_text("\n".join(map(json.dumps, [*rows, {"data": TEXTS}])))
    return path


def kineto(tmp_path):
    events = [
        event(name, s / 1e3, (e - s) / 1e3, correlation=key, stream=stream)
        for name, s, e, key, stream in KERNELS
    ]
    for name, s, e, key in CALLS:
        call = name.partition("_")[0]
        events.append(event(call, s / 1e3, (e - s) / 1e3, "cuda_runtime", correlation=key))
    events += [event(name, s / 1e3, (e - s) / 1e3, "user_annotation") for name, s, e in STEPS]
    return written(tmp_path, [*events, event("Memcpy HtoD", 32, 1, "gpu_memcpy", correlation=9, stream=7)])


def test_all_three_forms_are_the_same_profile(tmp_path):
    paths = [sqlite(tmp_path / "a.sqlite"), lines(tmp_path / "a.jsonl"), kineto(tmp_path)]
    assert all(map(is_profile, paths))
    (a,), (b,), (c,) = map(read_profiles, paths)
    assert a.device == "NVIDIA H100 80GB HBM3" and [step.name for step in a.steps] == [
        "iteration 1",
        "iteration 2",
    ]
    reports = [profile_report([each]).as_json() for each in (a, b, c)]
    for report in reports[:2]:
        assert (
            report["breakdown_s"] == reports[2]["breakdown_s"]
            and report["operators"] == reports[2]["operators"]
        )
    times = [replay_step(each, {"gemm": 2.0}).simulated for each in (a, b, c)]
    assert len(set(times)) == 1


def test_each_gpu_of_an_export_is_a_rank_of_its_own(tmp_path):
    path = sqlite(tmp_path / "a.sqlite")
    with closing(sqlite3.connect(path)) as data, data:
        data.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = 1 WHERE streamId = 9")
    assert [(each.rank, len(each.events)) for each in read_profiles(path)] == [(0, 3), (1, 1)]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.sqlite", b"SQLite format 3\x00" + b"\x01" * 200, "is no export of Nsight Systems"),
        ("a.jsonl", b'{"CudaEvent": {"startNs": "5", "kernel": {}}}\n', "has no startNs or no endNs"),
        (
            "a.jsonl",
            b'{"CudaEvent": {"startNs": "5", "endNs": "4", "kernel": {}}}\n',
            "ends 1 ns before it begins",
        ),
        ("a.jsonl", b'{"NvtxEvent": {}}\n{"x": \n', "line 2: is no JSON"),
        ("a.jsonl", b'{"NvtxEvent": {}}\n', "has no kernels"),
    ],
)
def test_a_damaged_export_is_one_line(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(TraceError) as problem:
        read_profiles(path)
    assert said in str(problem.value) and "\n" not in str(problem.value)


def test_launches_of_a_process_belong_to_its_kernels(tmp_path):
    path = sqlite(tmp_path / "a.sqlite")
    assert read_profiles(path)[0].events.called.tolist() == [5_000, 7_000, -1, 50_000]
