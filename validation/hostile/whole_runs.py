"""Good inputs of runs over weeks, of profiles of real runs, and of pages that explain results; see `samples`."""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import Any

from rapid_des.cli.main import cli
from validation.hostile.sample import SMALL_MODEL, Sample, of

_RELIABILITY = """source: a test
detection: uniform(1 min, 3 min)
diagnosis: exponential(2 min)
repair: lognormal(24 h, 1)
tolerate: step_slower < 50%
checkpoint: {interval: 30 min, storage: 200 GB/s}
restart: {start: "uniform(5 min, 20 min)"}
spares: {hot: 0}
classes:
  - {name: GPU, per: gpu, observed: {failures: 148, parts: 16384, period: 54 d}}
  - {name: software, per: job, mtbf: 2 d, takes: nothing}
  - {name: optic, per: node, rate: 0.1 /d, effect: slows, fault: "gpu={gpu} compute=0.9", lasts: "uniform(1 h, 2 h)", misdiagnosis: 0.1}
  - {name: power, per: node, mtbf: 30 d, law: {kind: weibull, shape: 0.8}}
"""
_JOB = f"""phase: training
parallelism: {{tp: 8}}
training: {{global_batch: 8, micro_batch: 1, sequence_length: 1024}}
{SMALL_MODEL}"""


_ALL_REDUCE: dict[str, Any] = {
    "Collective name": "allreduce",
    "In msg nelems": 8,
    "Group size": 4,
    "dtype": "BFloat16",
}


def _event(name: str, start: int, length: int, category: str = "kernel", **arguments: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": 7, "ts": start, "dur": length,
            "args": arguments}  # fmt: skip


def _profile() -> str:
    """Return two steps of a rank as PyTorch writes them."""
    events = []
    for step, at in ((10, 1000), (11, 1100), (12, 1200)):
        launched = [_event("cudaLaunchKernel", at + when, 1, "cuda_runtime", correlation=10 * step + when)
                    for when in (0, 5, 7)]  # fmt: skip
        events += [
            _event(f"ProfilerStep#{step}", at - 2, 100, "user_annotation"),
            *launched,
            _event("ampere_bf16_s16816gemm_bf16_128x128_tn", at + 10, 20, stream=7, correlation=10 * step),
            _event("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", at + 20, 40, stream=9, correlation=10 * step + 5,
                   **_ALL_REDUCE),
            _event("Memcpy HtoD (Pinned -> Device)", at + 62, 5, "gpu_memcpy", stream=7, correlation=10 * step + 7),
        ]  # fmt: skip
    return json.dumps(
        {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 4}, "traceEvents": events}
    )


_NCCL = (
    "# Collective test starting: all_reduce_perf\n"
    + "".join(f"#  Rank {rank} Group 0 Pid {rank} on node0 device {rank} [0x1b] H100\n" for rank in range(8))
    + """#  size  count  type  redop  root  time  algbw  busbw #wrong
 67108864  16777216  float  sum  -1  300.00  223.70  391.47  0
 134217728  33554432  float  sum  -1  530.00  253.24  443.17  0
 268435456  67108864  float  sum  -1  1080.00  248.55  434.96  0
"""
)
_MONITOR = """#Entity   SMCLK  GPUTL
ID
GPU 0     1410   99
GPU 0     1395   100
GPU 0     1400   100
"""
_GEMMS = """M,N,K,dtype,time_us
4096,4096,4096,bf16,300
8192,4096,4096,bf16,600
2048,4096,4096,bf16,150
4096,8192,4096,bf16,600
4096,4096,2048,bf16,150
"""
_INFINIBAND = """RDMA_Write BW Test
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      5000             362.10             361.94               0.690346
 131072     5000             366.31             366.12               0.349160
 262144     5000             366.31             366.12               0.349160
"""


def _nsight_lines() -> str:
    """Return a small export of Nsight Systems as JSON lines."""
    place = {"deviceId": 0, "streamId": "7", "globalPid": "16777216"}
    rows: list[object] = []
    for number in range(6):
        start = 1000 * number
        where = {"startNs": str(start + 200), "endNs": str(start + 700), "correlationId": number, **place}
        rows.append({"CudaEvent": {**where, "kernel": {"shortName": str(number % 2)}}})
        call = {"startNs": str(start), "endNs": str(start + 100), "correlationId": number, "name": "2"}
        rows.append({"TraceProcessEvent": {**call, "globalTid": "16777217"}})
    mark = {"Timestamp": "0", "EndTimestamp": "3000", "Text": "step 1", "GlobalTid": "16777217"}
    return "\n".join(
        map(json.dumps, [*rows, {"NvtxEvent": mark}, {"data": ["sgemm", "gelu", "cudaLaunchKernel"]}])
    )


def _nsight_tables() -> bytes:
    """Return a small export of Nsight Systems as an SQLite database."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.sqlite")
        with closing(sqlite3.connect(path)) as data, data:
            data.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
            data.execute("INSERT INTO StringIds VALUES (1, 'sgemm'), (2, 'cudaLaunchKernel_v7000')")
            keys = "start, end, deviceId, streamId, correlationId, globalPid, shortName"
            data.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({keys})")
            data.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (200, 700, 0, 7, 1, 16777216, 1)")
            data.execute(
                "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, correlationId, globalTid, nameId)"
            )
            data.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (0, 100, 1, 16777217, 2)")
        return path.read_bytes()


def _printed(line: str, files: Mapping[str, bytes]) -> str:
    """Return what a command prints on stdout."""
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()) as out:
        for name, content in files.items():
            Path(folder, name).write_bytes(content)
        cli([word.replace("@", folder) for word in line.split("|")], standalone_mode=False)
    return out.getvalue()


def whole_runs() -> dict[str, Sample]:
    """Return the kinds."""
    goodput = (
        "goodput|@/j.yaml|--on|dgx_a100|--mode|analytical|--days|2|--replications|3|--reliability|@/r.yaml"
    )
    files = {"r.yaml": _RELIABILITY.encode(), "j.yaml": _JOB.encode()}
    simulated = _printed("run|@/j.yaml|--on|dgx_a100|--mode|analytical|--json", files)
    kept = frozenset({0, 1, 7, 8, 9, 10})
    packed = gzip.compress(_profile().encode(), mtime=0)
    return {
        "reliability": Sample(tuple(goodput.split("|")), files),
        "reliability set": Sample(
            (*goodput.split("|"), "--set", "reliability.checkpoint.interval=auto"),
            files,
            line=True,
            kept=kept,
        ),
        "profile": of("profile|show|@/rank0.json", rank0_dot_json=_profile()),
        "profile replay": of("replay|@/rank0.json|--speed|gemm=1.3x", rank0_dot_json=_profile()),
        "profile gzip": of("profile|show|@/rank0.json.gz", binary=True, rank0_dot_json_dot_gz=packed),
        "profile on a machine": of(
            "replay|@/rank0.json|--network|simulated|--on|dgx_a100", rank0_dot_json=_profile()
        ),
        "nsight lines": of("profile|show|@/a.jsonl", a_dot_jsonl=_nsight_lines()),
        "nsight tables": of("profile|show|@/a.sqlite", binary=True, a_dot_sqlite=_nsight_tables()),
        "calibrate nccl": of("calibrate|-o|@/out|--on|dgx_h100|@/all_reduce.txt", all_reduce_dot_txt=_NCCL),
        "calibrate clocks": of("calibrate|-o|@/out|--on|dgx_h100|@/c.txt", c_dot_txt=_MONITOR),
        "calibrate gemms": of("calibrate|-o|@/out|--on|dgx_h100|@/g.csv", g_dot_csv=_GEMMS),
        "calibrate network": of("calibrate|-o|@/out|--on|dgx_h100_x8|@/i.txt", i_dot_txt=_INFINIBAND),
        "why": of("why|@/j.yaml|--on|dgx_a100", j_dot_yaml=_JOB),
        "new": Sample(
            ("new", "job", "-o", "@/n.yaml", "--set", "model=llama3_1_8b", "--set", "parallelism.tp=4"),
            line=True,
        ),
        "page": of("report|@/a.json|-o|@/page.html", a_dot_json=simulated),
    }
