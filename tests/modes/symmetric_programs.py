"""Random traces with a symmetry: ranks that run one table on machines whose shifts map onto themselves.

In some all traffic stays in rows: then links choose among ranks of one row only, whose order a shift of whole
rows keeps.
"""

from __future__ import annotations

from hypothesis import strategies as st

from rapid_des.chakra.trace import CollectiveType
from rapid_des.program.lowering import lower
from tests.engines.random_programs import CUT, IN_SWITCH, ONE_FOR_ALL, PARTS, PER_AXIS, SEGMENTS
from tests.program.machines import STORE, dimension, machine, ring, switch
from tests.program.tracing import Nodes, same_everywhere

FABRICS = [
    (ring(4),),
    (ring(6),),
    (switch(6),),
    (dimension("torus", [3, 3]),),
    (dimension("torus", [4, 2]),),
    (dimension("fully_connected", 4),),
    (ring(5), ring(3)),
    (ring(3), switch(4, bandwidth="500 MB/s")),
    (switch(2), ring(4)),
    (dimension("mesh", [2, 3]),),
    (dimension("hypercube", 8),),
]
TORI = [(dimension("torus", [3, 3]), ring(2)), (dimension("torus", [3, 3]), switch(3))]
KINDS = [
    CollectiveType.ALL_REDUCE,
    CollectiveType.ALL_REDUCE,
    CollectiveType.ALL_GATHER,
    CollectiveType.REDUCE_SCATTER,
    CollectiveType.ALL_TO_ALL,
    CollectiveType.BARRIER,
    CollectiveType.BROADCAST,
]


@st.composite
def symmetric_programs(draw, *, crowded=False):
    """Every rank runs one table: on itself, with all, with its row or column, and with shifted neighbours.

    In a crowded program messages from many ranks meet on links at one instant.
    """
    fabric = draw(st.sampled_from(TORI if crowded else FABRICS))
    switching = draw(st.sampled_from([STORE, SEGMENTS, CUT, PARTS]))
    switched = [part["shape"] == "switch" for part in fabric]
    algorithms = ["direct"] if crowded else [*ONE_FOR_ALL, *(IN_SWITCH if any(switched) else [])]
    algorithm = draw(st.sampled_from(algorithms))
    if algorithm in [*PER_AXIS, *IN_SWITCH] and draw(st.booleans()):
        algorithm = [
            algorithm if algorithm in PER_AXIS or own else "ring"
            for part, own in zip(fabric, switched, strict=True)
            for _ in (part["size"] if isinstance(part["size"], list) else [0])
        ]
    chunks = draw(st.sampled_from([1, 2]))
    where = machine(
        *fabric, switching=switching, collectives={"default": {"algorithm": algorithm, "chunks": chunks}}
    )
    return lower(draw(_traces(where.fabric.gpus, where.fabric.axes[0])), where).program


@st.composite
def _traces(draw, ranks, inner):
    rng = draw(st.randoms(use_true_random=False))
    groups = {f"row{row}": tuple(range(row * inner, (row + 1) * inner)) for row in range(ranks // inner)}
    groups |= {f"column{column}": tuple(range(column, ranks, inner)) for column in range(inner)}
    shift = rng.choice([1, inner, ranks - 1])
    nodes = Nodes()
    kinds = rng.choice([["world", "row", "column", "message"], ["row"]])
    for _ in range(rng.randint(1, 8)):
        _node(rng, nodes, kinds)
    names = {
        "world": lambda rank: "world",
        "row": lambda rank: f"row{rank // inner}",
        "column": lambda rank: f"column{rank % inner}",
    }
    peers = {1: shift, -1: -shift}
    return same_everywhere(
        nodes,
        ranks,
        groups_of=lambda rank: [names[name](rank) for name in nodes.groups],
        peers_of=lambda rank: [(rank + peers[peer]) % ranks for peer in nodes.peers],
        groups=groups,
    )


def _node(rng, nodes, kinds):
    count = len(nodes.rows)
    after = tuple(sorted(rng.sample(range(count), min(count, rng.randint(0, 2)))))
    kind = rng.choice(["compute", *kinds])
    priority = rng.choice([0, 0, 0, 1])
    if kind == "compute":
        nodes.compute(rng.choice([1, 500, 40_000]), after=after, priority=priority)
    elif kind != "message":
        stream = rng.choice(["s0", "s1"])
        size = rng.choice([8, 100, 240])
        nodes.collective(rng.choice(KINDS), size, kind, stream=stream, after=after, priority=priority)
    else:
        size, tag = rng.choice([1, 100, 230]), rng.randint(0, 1)
        nodes.send(1, size, tag=tag, after=after, priority=priority)
        nodes.recv(-1, size, tag=tag)
