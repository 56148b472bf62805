"""One good input of every kind that the command line reads: files, and the command that reads them.

A command names the folder of its files as `@`; the first file of a kind is the one that is attacked.
"""

from __future__ import annotations

import gzip
import io
import json
from functools import cache
from pathlib import Path

import numpy as np

from validation.hostile.drawn import drawn
from validation.hostile.foreign import importers, servers, studies
from validation.hostile.notebooks import notebooks
from validation.hostile.sample import SMALL_MODEL, Sample, of
from validation.hostile.whole_runs import whole_runs

_ROOT = Path(__file__).parents[2]
_TRACES = _ROOT / "workloads" / "traces"

MACHINE = """name: small
device: a100_sxm_80gb
gpus_per_node: 4
fabric:
  - {name: nvlink, shape: switch, size: 4, bandwidth: 300 GB/s, latency: 350 ns}
  - {name: ring, shape: ring, size: 2, bandwidth: 25 GB/s, latency: 1 us}
routing: {order: innermost_first, tie: positive}
switching: {mode: cut_through, segment: 4 KiB}
collectives: {default: ring}
links: [{source: 0, destination: switch0, both_directions: true, latency: 1 us}]
faults: [{link: 0-switch0, bandwidth: 0.5, from: 1 ms, until: 2 ms}]
"""
_SHAPES = """name: shapes
device: a100_sxm_80gb
fabric:
  - {name: a, shape: torus, size: [2, 2], bandwidth: 25 GB/s, latency: 1 us}
  - {name: b, shape: hypercube, size: 4, bandwidth: 25 GB/s, latency: 1 us}
  - {name: c, shape: clos, size: 4, leaf_size: 2, spines: 2, bandwidth: 25 GB/s, latency: 1 us,
     uplink: {bandwidth: 50 GB/s, latency: 300 ns}, nic: {gpus: 1, bandwidth: 32 GB/s, latency: 1 us}}
  - {name: d, shape: dragonfly, size: 4, hosts: 1, routers: 2, global_links: 1, bandwidth: 25 GB/s, latency: 1 us,
     local_link: {bandwidth: 50 GB/s, latency: 300 ns}, global_link: {bandwidth: 50 GB/s, latency: 1 us}}
routing: {order: outermost_first, tie: lowest_id, ecmp: hash}
switching: {mode: fluid, protocol: {payload: 4 KiB, header: 64 B, acknowledgement: 64 B, packets_per_acknowledgement: 1, packet_time: exact}}
"""
_ROUTERS = """name: routers
device: tpu_v4
fabric:
  - {name: a, shape: twisted_torus, size: [2, 2], twists: [{wrap: 0, along: 1, by: 1}], bandwidth: 25 GB/s, latency: 1 us}
  - {name: b, shape: hyperx, size: 2, hosts: 1, routers: [2, 2], cables: [1, 2], bandwidth: 25 GB/s, latency: 1 us,
     router_link: {bandwidth: 50 GB/s, latency: 300 ns}}
  - {name: c, shape: slim_fly, size: 2, hosts: 1, q: 3, bandwidth: 25 GB/s, latency: 1 us,
     router_link: {bandwidth: 50 GB/s, latency: 300 ns}}
  - {name: d, shape: dragonfly_plus, size: 4, hosts: 1, leaves: 2, spines: 2, global_links: 1, bandwidth: 25 GB/s,
     latency: 1 us, planes: 2, spread: hash, local_link: {bandwidth: 50 GB/s, latency: 300 ns},
     global_link: {bandwidth: 50 GB/s, latency: 1 us}, nic: {gpus: 1, count: 2, bandwidth: 32 GB/s, latency: 1 us}}
routing: {order: innermost_first, tie: hash, non_minimal: {through: router, share: 0.5, seed: 1},
  waypoints: [{source: 0, destination: 4, through: switch3}]}
switching: {mode: cut_through, segment: 4 KiB}
"""
_DEVICE = "base: h100_sxm\nname: mine\nsms: 120\nhbm: {bandwidth: 3 TB/s}\npower: 0.9x\n"
_CONSTANTS = """base: h100_sxm
name: mine
constants:
  gemm: {default: {start_us: 0.5, tensor: 0.9, overlap: 3.6, step_us: 0.09}, vllm/fp8: {hbm: 0.9}}
  attention: {default: {tile_q: 128, softmax_ops: 7.15, norm: 2.35, cta_us: 4.1}}
  decode: {default: {split: 2, max_splits: 128, stream_gbps: 198, norm: 2}}
  vector: {default: {step_us: 0.95, rope_row_us: 0.1, norm: 2, block_threads: 512}}
  memory: {default: {l2_share: 0.4, hbm_utilisation: 0.95}}
"""
_JOB = """model: llama2_7b
phase: training
parallelism: {tp: 2, pp: 2, dp: 2, sequence_parallel: true}
training: {global_batch: 8, micro_batch: 1, sequence_length: 1024, schedule: 1f1b, zero_stage: 1}
"""
_SERVED = f"""phase: inference
parallelism: {{tp: 8}}
inference: {{batch: 4, prompt_length: 128, output_length: 16, cuda_graphs: true}}
{SMALL_MODEL}"""
_ON = "name: m\ndevice: a100_sxm_80gb\nfabric: [{name: g, size: 4, %s}]\n" + "\n".join(
    MACHINE.splitlines()[6:9]
)
_GRAPH = _ON % "shape: graph, bandwidth: 25 GB/s, latency: 1 us, file: %s"
_EDGES = """source,destination,bandwidth,latency,direction
0,1,50 GB/s,1 us,both
1,2,50 GB/s,,both
2,sw0,25 GB/s,2 us,both
sw0,3,25 GB/s,2 us,one
3,sw0,25 GB/s,2 us,one
"""
_LINKS = json.dumps(
    {
        "directed": False,
        "multigraph": False,
        "nodes": [{"id": "gpu0"}, {"id": "gpu1"}, {"id": "gpu2"}, {"id": "gpu3"}, {"id": "nic0"}],
        "links": [
            {"source": "gpu0", "target": "gpu1", "latency": "3 us"},
            {"source": "gpu1", "target": "nic0", "bandwidth": "10 GB/s"},
            {"source": "nic0", "target": "gpu2"},
            {"source": "gpu2", "target": "gpu3", "direction": "both"},
        ],
    }
)
_INFRAGRAPH = """name: two servers
devices:
  - name: server
    components:
      - {name: xpu, choice: xpu, count: 2}
      - {name: port, choice: nic, count: 2}
    links:
      - name: pcie
        physical:
          bandwidth: {choice: gigabytes_per_second, gigabytes_per_second: 32}
          latency: {choice: ns, ns: 500}
    edges:
      - {ep1: {component: "xpu[0:2]"}, ep2: {component: "port[0:2]"}, scheme: one2one, link: pcie}
  - name: leaf
    components: [{name: port, choice: port, count: 4}, {name: chip, choice: switch, count: 1}]
    links:
      - name: inside
        physical: {bandwidth: {choice: gigabits_per_second, gigabits_per_second: 400}, latency: {choice: us, us: 1}}
    edges: [{ep1: {component: port}, ep2: {component: chip}, scheme: many2many, link: inside}]
links:
  - name: cable
    physical: {bandwidth: {choice: gigabits_per_second, gigabits_per_second: 200}, latency: {choice: us, us: 1}}
instances: [{name: server, device: server, count: 2}, {name: leaf, device: leaf, count: 1}]
edges:
  - {ep1: {instance: server, component: port}, ep2: {instance: leaf, component: port}, scheme: one2one, link: cable}
"""
_WRITTEN = {
    "collective": "all_reduce",
    "members": 2,
    "blocks": 2,
    "transfers": [
        {"source": 0, "destination": 1, "block": 0, "reduces": True},
        {"source": 1, "destination": 0, "block": 1, "reduces": True},
        {"source": 1, "destination": 0, "block": 0, "after": [0]},
        {"source": 0, "destination": 1, "block": 1, "after": [1]},
    ],
}
_WRITTEN_CSV = """# collective=all_reduce members=2 blocks=2
source,destination,block,count,reduces,after
0,1,0,1,1,
1,0,1,1,1,
1,0,0,1,0,0
0,1,1,1,0,1
"""
_STEPS = ("s", "rrcs", "r")
_MSCCL = "\n".join(
    [
        '<algo name="x" proto="Simple" nchannels="1" ngpus="2" coll="allreduce" inplace="1">',
        *(
            f'<gpu id="{gpu}" i_chunks="2" o_chunks="0" s_chunks="0">'
            f'<tb id="0" send="{1 - gpu}" recv="{1 - gpu}" chan="0">'
            + "".join(
                f'<step s="{step}" type="{kind}" srcbuf="i" srcoff="{(gpu + step) % 2}" dstbuf="i" '
                f'dstoff="{(gpu + step) % 2}" cnt="1" depid="-1" deps="-1" hasdep="0"/>'
                for step, kind in enumerate(_STEPS)
            )
            + "</tb></gpu>"
            for gpu in (0, 1)
        ),
        "</algo>",
    ]
)
_NETWORK = (
    "topology: [ Ring, Switch ]\nnpus_count: [ 2, 2 ]\nbandwidth: [ 50.0, 25.0 ]\nlatency: [ 500, 1e3 ]\n"
)
_SYSTEM = json.dumps(
    {
        "scheduling-policy": "LIFO",
        "all-reduce-implementation": ["ring", "direct"],
        "all-gather-implementation": ["ring", "direct"],
        "all-to-all-implementation": ["ring", "direct"],
        "reduce-scatter-implementation": ["ring", "direct"],
        "collective-optimization": "localBWAware",
        "endpoint-delay": 10,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 4,
        "local-mem-bw": 1600,
        "peak-perf": 900,
        "roofline-enabled": 1,
    }
)
_MEMORY = json.dumps(
    {"memory-type": "PER_NPU_MEMORY_EXPANSION", "remote-mem-latency": 100, "remote-mem-bw": 50.0}
)
_SAMPLES = "operator,m,n,k,batch,time_us\n" + "".join(
    f"gemm/bf16,{m},{n},128,1,{10 + m * n / 2**20}\n" for m in (64, 128, 256) for n in (128, 256, 512, 640)
)
_MEASURED = "case_id,M,N,K,dtype,time_us\n" + "".join(
    f"c{m},{m},{n},1024,bf16,{10 + m * n / 2**16:.3f}\n" for m in (64, 128, 256, 512) for n in (256, 512)
)
_LEARNED_DEVICE = "base: h100_sxm\nname: l\noperators: learned:x.npz\n"


def _learned() -> bytes:
    head = {
        "format": "rapid-des learned operators 1",
        "source": "x",
        "fallback": "native",
        "operators": {
            "gemm/bf16": {
                "prefix": "r0", "names": ["m", "n", "k", "batch"], "low": [1, 1, 1, 1],
                "high": [4096, 4096, 4096, 1], "kind": "extra_trees", "degree": 1, "error": 0.1, "rows": 12,
            }
        },
    }  # fmt: skip
    arrays = {
        "head": np.frombuffer(json.dumps(head).encode(), np.uint8),
        "r0.coefficients": np.array([1.0, 0.2, 0.2, 0.2, 0.0]),
        "r0.roots": np.array([0], np.int32),
        "r0.feature": np.array([0, -1, -1], np.int16),
        "r0.threshold": np.array([3.0, 0.0, 0.0]),
        "r0.left": np.array([1, 0, 0], np.int32),
        "r0.right": np.array([2, 0, 0], np.int32),
        "r0.value": np.array([0.0, 0.1, 0.2], np.float32),
        "r0.ends": np.array([1.0, 0.0]),
    }
    packed = io.BytesIO()
    np.savez(packed, **arrays)  # type: ignore[arg-type]
    return packed.getvalue()


@cache
def samples() -> dict[str, Sample]:
    """Return every kind by name."""
    return written() | studies() | whole_runs()


@cache
def written() -> dict[str, Sample]:
    """Return the kinds whose files are written here, without running a study or a job."""
    return own() | importers() | servers() | notebooks(MACHINE) | drawn(MACHINE)


def own() -> dict[str, Sample]:
    """Return the kinds that describe machines, jobs and traces."""
    astra = "replay|@/t|--astra-network|@/n.yml|--astra-system|@/s.json|--astra-groups|@/g.json"
    astra += "|--astra-memory|@/m.json"
    traces = {f"t.{rank}.et": (_TRACES / f"all_reduce_4.{rank}.et").read_bytes() for rank in range(4)}
    simulated = {"n.yml": _NETWORK.encode(), "s.json": _SYSTEM.encode(), "g.json": b'{"1": [0, 1], "2": [2, 3]}',
                 "m.json": _MEMORY.encode()}  # fmt: skip

    def with_first(first: str) -> Sample:
        files = {first: simulated[first]} | simulated | traces
        return Sample(tuple(astra.split("|")), files)

    frames, packed = traces["t.0.et"], gzip.compress(traces["t.0.et"], mtime=0)
    rest = {name: content for name, content in traces.items() if name != "t.0.et"}
    graph = "topology|route|@/m.yaml|0|3"
    bench = "topology|bench|dgx_a100|--gpus|2|--sizes|1KiB|--algorithm|"
    kinds = {
        "machine": of("topology|check|@/m.yaml", m_dot_yaml=MACHINE),
        "shapes": of("topology|check|@/m.yaml", m_dot_yaml=_SHAPES),
        "routers": of("topology|check|@/m.yaml", m_dot_yaml=_ROUTERS),
        "machine bench": of("topology|bench|@/m.yaml|--sizes|64KiB|--gpus|4", m_dot_yaml=MACHINE),
        "device": of("device|show|@/d.yaml", d_dot_yaml=_DEVICE),
        "constants": of("operator|attention|2|64|64|--heads|4|--device|@/d.yaml", d_dot_yaml=_CONSTANTS),
        "constants gemm": of("operator|gemm|64|64|64|--device|@/d.yaml", d_dot_yaml=_CONSTANTS),
        "job": of("run|@/j.yaml|--on|dgx_a100|--mode|analytical", j_dot_yaml=_JOB),
        "job served": of("run|@/j.yaml|--on|dgx_a100|--mode|analytical", j_dot_yaml=_SERVED),
        "edge list": of(graph, e_dot_csv=_EDGES, m_dot_yaml=_GRAPH % "e.csv"),
        "node-link": of(graph, e_dot_json=_LINKS, m_dot_yaml=_GRAPH % "e.json"),
        "infragraph": of(graph, e_dot_yaml=_INFRAGRAPH, m_dot_yaml=_ON % "shape: infragraph, file: e.yaml"),
        "msccl": of(f"{bench}@/x.xml", x_dot_xml=_MSCCL),
        "written json": of(f"{bench}@/x.json", x_dot_json=json.dumps(_WRITTEN)),
        "written csv": of(f"{bench}@/x.csv", x_dot_csv=_WRITTEN_CSV),
        "astra network": with_first("n.yml"),
        "astra system": with_first("s.json"),
        "astra groups": with_first("g.json"),
        "astra memory": with_first("m.json"),
        "trace": Sample(("trace", "check", "@/t"), {"t.0.et": frames} | rest, binary=True),
        "trace replay": Sample(("replay", "@/t", "--on", "dgx_a100"), {"t.0.et": frames} | rest, binary=True),
        "trace gzip": Sample(("trace", "stats", "@/t"), {"t.0.et.gz": packed} | rest, binary=True),
        "trace groups": Sample(("trace", "check", "@/t"), {"t.groups.json": b'{"1": [0, 1]}'} | traces),
        "trace json": of("trace|show|@/t.0.json", t_dot_0_dot_json=_workload()),
        "learned": of(
            "operator|gemm|64|64|64|--device|@/d.yaml", binary=True, x_dot_npz=_learned(),
            d_dot_yaml=_LEARNED_DEVICE,
        ),
        "measured": of("device|calibrate|@/x.csv|--device|h100_sxm|--fit|hbm", x_dot_csv=_MEASURED),
        "samples": of(
            "device|fit|@/x.csv|@/out.npz|--fallback|native", x_dot_csv=_SAMPLES
        ),
    }  # fmt: skip
    lines = {
        "set machine": "topology|show|dgx_a100|--set|machine.fabric.0.bandwidth=300 GB/s",
        "set device": "device|show|h100_sxm|--set|device.constants.gemm.default.hbm=0.9",
        "set job": "run|llama2_7b_train|--on|dgx_a100|--mode|analytical|--set|job.training.global_batch=8",
        "fault": "topology|check|dgx_a100_x2|--fault|link=0-switch0 bandwidth=0.5 from=1ms until=2ms",
        "fault random": "topology|check|dgx_a100_x2|--fault|random=links count=2 seed=7 where='source < 4' down=true",
        "route": "topology|route|dgx_a100_x2|(1, 0)|gpu9",
        "operator": "operator|gemm|128|256|512|--device|h100_sxm|--dtype|bf16|--library|cublas",
        "operator vector": "operator|softmax|128|256|--device|a100_sxm_80gb|--dtype|fp16",
        "operator grouped": "operator|grouped|32x128|256|512|--device|h100_sxm",
        "sizes": "topology|bench|dgx_a100|--sizes|1KiB:4KiB|--factor|2|--gpus|4|--chunks|2|--algorithm|ring",
    }
    return kinds | {name: Sample(tuple(line.split("|"))) for name, line in lines.items()}


def _workload() -> str:
    nodes = [
        {"Id": 0, "Name": "a", "NodeType": 4, "runtime": 5, "num_ops": 100, "tensor_size": 64},
        {"Id": 1, "Name": "b", "NodeType": 7, "data_deps": [0], "comm_type": 0, "comm_size": 1024},
    ]
    return json.dumps({"workload_graph": nodes})
