"""Algorithms from files: JSON and CSV of transfers, and MSCCL's XML; each proves what it claims."""

from __future__ import annotations

import json

import pytest

from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import ConfigError
from rapid_des.network.collectives import demand, prove
from rapid_des.network.collectives.algorithm_files import load_algorithm, load_msccl
from rapid_des.network.collectives.written import load_written

EXCHANGE = """# collective=all_reduce members=2 blocks=2
source,destination,block,count,reduces,after
0,1,1,1,1,
1,0,0,1,1,
0,1,0,1,0,1
1,0,1,1,0,0
"""


def test_a_csv_of_transfers_serves_any_size(tmp_path):
    path = tmp_path / "exchange.csv"
    path.write_text(EXCHANGE)
    algorithm = load_written(path)
    schedule = algorithm(1001)
    prove(schedule, demand(CollectiveType.ALL_REDUCE, 2, 1001))
    # 1001 B in two blocks: 501 and 500, each once to be reduced and once back
    assert schedule.size.tolist() == [500, 501, 501, 500]


def test_the_same_as_json(tmp_path):
    rows = [
        {"source": 0, "destination": 1, "block": 0},
        {"source": 1, "destination": 2, "block": 0, "after": [0]},
        {"source": 0, "destination": 2, "block": 1},
        {"source": 2, "destination": 1, "block": 1, "after": [2]},
    ]
    path = tmp_path / "broadcast.json"
    path.write_text(json.dumps({"collective": "broadcast", "members": 3, "blocks": 2, "transfers": rows}))
    prove(load_written(path)(999), demand(CollectiveType.BROADCAST, 3, 999))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("1,0,1,1,0,0", "1,0,1,1,0,"), r"do not do all_reduce: transfer 3 from .*|.*member 0 ends with"),
        (("0,1,0,1,0,1", "0,5,0,1,0,1"), r"transfers\[2\]: source 0, destination 5: two of 0 to 1"),
        (("0,1,0,1,0,1", "0,1,0,3,0,1"), r"transfers\[2\]\.block: blocks 0 to 2 are not within 0 to 1"),
        (("0,1,0,1,0,1", "0,1,0,1,0,3"), r"transfers\[2\]\.after: \[3\]: only earlier rows"),
        (("all_reduce", "allreduce"), r"collective: 'allreduce' is not one of all_reduce, "),
        (("# collective", "collective"), r"the first line must be like '# collective=all_reduce"),
        (("blocks=2", "blocks=two"), r"blocks: "),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path, change, message):
    path = tmp_path / "wrong.csv"
    path.write_text(EXCHANGE.replace(*change))
    with pytest.raises(ConfigError, match=message) as caught:
        load_written(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def ring_xml(members):
    """A ring all-reduce as MSCCL writes it: one thread block a GPU, reduce round, then copy round."""
    lines = [
        f'<algo name="ring" proto="Simple" nchannels="1" nchunksperloop="{members}" ngpus="{members}" '
        'coll="allreduce" inplace="1">'
    ]
    for gpu in range(members):
        lines.append(f'<gpu id="{gpu}" i_chunks="{members}" o_chunks="0" s_chunks="0">')
        lines.append(f'<tb id="0" send="{(gpu + 1) % members}" recv="{(gpu - 1) % members}" chan="0">')
        kinds = ["s"] + ["rrs"] * (members - 2) + ["rrcs"] + ["rcs"] * (members - 2) + ["r"]
        for step, kind in enumerate(kinds):
            chunk = (gpu - step) % members
            lines.append(
                f'<step s="{step}" type="{kind}" srcbuf="i" srcoff="{chunk}" dstbuf="i" dstoff="{chunk}" '
                'cnt="1" depid="-1" deps="-1" hasdep="0"/>'
            )
        lines.append("</tb></gpu>")
    return "".join([*lines, "</algo>"])


@pytest.mark.parametrize("members", [2, 3, 5])
def test_an_msccl_ring_is_an_all_reduce(tmp_path, members):
    path = tmp_path / "ring.xml"
    path.write_text(ring_xml(members))
    schedule = load_msccl(path)(1000)
    prove(schedule, demand(CollectiveType.ALL_REDUCE, members, 1000))
    assert len(schedule) == 2 * (members - 1) * members


ALL_TO_ALL = """<algo name="relay" ngpus="3" nchannels="1" coll="alltoall" inplace="0">
{gpus}</algo>"""
STEP = (
    '<step s="{s}" type="{type}" srcbuf="{src}" srcoff="{so}" dstbuf="{dst}" dstoff="{do}" cnt="1" '
    'depid="{depid}" deps="{deps}" hasdep="0"/>'
)


def test_an_msccl_all_to_all_relays_through_scratch(tmp_path):
    def step(s, kind, src, so, dst, do, depid=-1, deps=-1):
        return STEP.format(s=s, type=kind, src=src, so=so, dst=dst, do=do, depid=depid, deps=deps)

    gpus = ""
    for gpu in range(3):
        right, left = (gpu + 1) % 3, (gpu - 1) % 3
        # what goes two on is handed to the right neighbour, which keeps it in scratch and passes it on
        steps = [
            step(0, "s", "i", right, "o", gpu),
            step(1, "s", "i", left, "s", 0),
            step(2, "s", "s", 0, "o", (gpu - 1) % 3, depid=1, deps=1),
        ]
        takes = [
            step(0, "r", "i", gpu, "o", left),
            step(1, "r", "i", gpu, "s", 0),
            step(2, "r", "s", 0, "o", (gpu - 2) % 3),
        ]
        gpus += f'<gpu id="{gpu}" i_chunks="3" o_chunks="3" s_chunks="1">'
        gpus += f'<tb id="0" send="{right}" recv="-1" chan="0">{"".join(steps)}</tb>'
        gpus += f'<tb id="1" send="-1" recv="{left}" chan="0">{"".join(takes)}</tb></gpu>'
    path = tmp_path / "relay.xml"
    path.write_text(ALL_TO_ALL.format(gpus=gpus))
    prove(load_msccl(path)(300), demand(CollectiveType.ALL_TO_ALL, 3, 300))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('type="s"', 'type="x"'), "step type 'x' is not one of"),
        (('coll="allreduce"', 'coll="gossip"'), "coll: 'gossip' is not one of allreduce"),
        (('recv="1"', 'recv="2"'), "waits for something that never comes"),
        (('ngpus="3"', ""), "an attribute is missing or no number: 'ngpus'"),
        (("</algo>", ""), "not valid XML"),
    ],
)
def test_wrong_msccl_is_refused_by_name(tmp_path, change, message):
    path = tmp_path / "wrong.xml"
    path.write_text(ring_xml(3).replace(*change))
    with pytest.raises(ConfigError, match=message):
        load_msccl(path)


def test_a_file_is_read_by_its_ending(tmp_path):
    path = tmp_path / "ring.xml"
    path.write_text(ring_xml(3))
    assert load_algorithm(path).file.blocks == 3
    with pytest.raises(ConfigError, match="an algorithm's file ends in one of .xml, .json, .yaml, .csv"):
        load_algorithm(tmp_path / "ring.txt")


def test_an_msccl_reduction_may_go_through_scratch(tmp_path):
    """Two GPUs swap whole buffers into scratch and add them there with a step of their own."""
    gpus = ""
    for gpu in range(2):
        sends = (
            '<step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0" cnt="2" depid="-1" deps="-1"/>'
        )
        takes = (
            '<step s="0" type="r" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0" cnt="2" depid="-1" deps="-1"/>'
            '<step s="1" type="re" srcbuf="s" srcoff="0" dstbuf="i" dstoff="0" cnt="2" depid="0" deps="0"/>'
            '<step s="2" type="nop" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="0" '
            'depid="-1" deps="-1"/>'
        )
        gpus += f'<gpu id="{gpu}" i_chunks="2" o_chunks="2" s_chunks="2">'
        gpus += f'<tb id="0" send="{1 - gpu}" recv="-1" chan="0">{sends}</tb>'
        gpus += f'<tb id="1" send="-1" recv="{1 - gpu}" chan="0">{takes}</tb></gpu>'
    path = tmp_path / "swap.xml"
    path.write_text(f'<algo name="swap" ngpus="2" nchannels="1" coll="allreduce" inplace="1">{gpus}</algo>')
    schedule = load_msccl(path)(100)
    prove(schedule, demand(CollectiveType.ALL_REDUCE, 2, 100))
    assert schedule.size.tolist() == [100, 100]


def test_an_msccl_all_gather_starts_with_the_shards_in_place(tmp_path):
    gpus = ""
    for gpu in range(3):
        step = '<step s="{s}" type="{t}" srcbuf="o" srcoff="{o}" dstbuf="o" dstoff="{o}" cnt="1" '
        step += 'depid="-1" deps="-1"/>'
        steps = [step.format(s=0, t="s", o=gpu), step.format(s=1, t="rcs", o=(gpu - 1) % 3)]
        steps.append(step.format(s=2, t="r", o=(gpu - 2) % 3))
        gpus += f'<gpu id="{gpu}" i_chunks="1" o_chunks="3" s_chunks="0">'
        gpus += (
            f'<tb id="0" send="{(gpu + 1) % 3}" recv="{(gpu - 1) % 3}" chan="0">{"".join(steps)}</tb></gpu>'
        )
    path = tmp_path / "gather.xml"
    path.write_text(f'<algo name="g" ngpus="3" nchannels="1" coll="allgather" inplace="1">{gpus}</algo>')
    prove(load_msccl(path)(7), demand(CollectiveType.ALL_GATHER, 3, 7))


def test_msccl_that_sends_what_is_not_there_is_refused(tmp_path):
    path = tmp_path / "early.xml"
    path.write_text(ring_xml(2).replace('type="s" srcbuf="i"', 'type="s" srcbuf="s"'))
    with pytest.raises(ConfigError, match=r"gpu 0 reads chunk s\[0\] before anything is there"):
        load_msccl(path)
