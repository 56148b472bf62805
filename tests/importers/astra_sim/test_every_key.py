"""Every key of ASTRA-sim's files, changed and renamed: times change, it is refused, or ignored by name."""

import pytest

from rapid_des.chakra.trace import CollectiveType, NodeKind
from rapid_des.engines.simpy.engine import run
from rapid_des.importers.astra_sim import lower, result_of
from rapid_des.importers.keys import Ignored
from rapid_des.testing.importers import ReadFile, silent

ALGORITHMS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
FILES = {"network": "net.yml", "system": "sys.json", "memory": "mem.json"}


@pytest.mark.parametrize("roofline", [0, 1])
def test_every_key_has_an_outcome(bench, roofline):
    kinds = (CollectiveType.ALL_REDUCE, CollectiveType.ALL_GATHER, CollectiveType.REDUCE_SCATTER,
             CollectiveType.ALL_TO_ALL)  # fmt: skip
    nodes = [
        bench.compute(1_000_003, flops=10**12, tensor_bytes=10**6),
        {"kind": NodeKind.MEM_LOAD, "size": 10**6, "after": [0]},
        *(bench.collective(1 << 20, kind, after=[place]) for place, kind in enumerate(kinds, 1)),
        *(bench.collective(1 << 21, kind, after=[1]) for kind in kinds),
    ]
    traces = bench.traces([(nodes,)] * 8)

    def importing(tree):
        bench.network, bench.system, bench.memory = (tree[name] for name in FILES)
        setup = bench.setup()
        program = lower(traces, setup).program
        result = result_of(program, run(program))
        named = {file: name for name, file in FILES.items()}
        split = ((*each.key.split(": "), each) for each in setup.ignored)
        ignored = [Ignored(f"{named[file]}.{key}", each.value, each.reason) for file, key, each in split]
        return ReadFile((result.finish_ns, result.exposed_communication_ns), tuple(ignored))

    system = bench.system | {f"{name}-implementation": ["ring", "direct"] for name in ALGORITHMS}
    system |= {
        "roofline-enabled": roofline, "peak-perf": 900, "preferred-dataset-splits": 4, "replay-only": 0,
        "model-shared-bus": 0, "L": 500, "boost-mode": 0, "trace-enabled": 0, "local-mem-bw": 50,
    }  # fmt: skip
    tree = {
        "network": {"topology": ["Ring", "FullyConnected"], "npus_count": [4, 2], "bandwidth": [50.0, 25.0],
                    "latency": [500.0, 700.0], "faulty_links": [[0, 1, 0.5]], "non_recursive_from": 2},
        "system": system,
        "memory": {"memory-type": "PER_NODE_MEMORY_EXPANSION", "remote-mem-latency": 100,
                   "remote-mem-bw": 20.0, "num-nodes": 2, "num-npus-per-node": 4},
    }  # fmt: skip
    assert not silent(tree, importing)
