"""What a person loads into ui.perfetto.dev and into a spreadsheet: complete, valid, and equal to the run."""

import csv
import gzip
import json
from collections import Counter

import pytest

from rapid_des.errors import InputError
from rapid_des.report import timeline
from rapid_des.report.rows import COLUMNS
from rapid_des.report.timeline import LINKS_PROCESS, Extract
from rapid_des.simulation import replay
from tests.cli.shell import call, refused
from tests.program.machines import machine, ring
from tests.program.tracing import ALL_REDUCE, Nodes, trace_set

HOP_US = 0.5 + 0.1
"""500 B at 1 GB/s and 100 ns."""


@pytest.fixture
def result():
    """Rank 0 computes 1 us, sends 500 B to rank 2 two hops away, then all three reduce 300 B."""
    programs = [Nodes() for _ in range(5)]
    for rank, nodes in enumerate(programs):
        gate = nodes.compute(1_000_000)
        if rank == 0:
            nodes.send(2, 500, stream="pp-send", after=gate)
        if rank == 2:
            nodes.recv(0, 500, stream="pp-recv")
        nodes.collective(ALL_REDUCE, 500, stream="dp", after=gate)
    return replay(trace_set(programs), machine(ring(5)), trail=True)


@pytest.fixture
def events(result, tmp_path):
    """The events of the written file."""
    result.write_timeline(tmp_path / "t.json")
    return json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["traceEvents"]


def tracks(events):
    """(process, thread) to its name."""
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}


def test_every_rank_and_stream_has_a_track(events):
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert processes == {rank: f"rank {rank}" for rank in range(5)} | {LINKS_PROCESS: "links"}
    of_rank = {
        rank: sorted(name for (process, _), name in tracks(events).items() if process == rank)
        for rank in range(5)
    }
    assert of_rank == {
        0: ["compute", "dp", "pp-send"],
        1: ["compute", "dp"],
        2: ["compute", "dp", "pp-recv"],
        3: ["compute", "dp"],
        4: ["compute", "dp"],
    }


def test_every_busy_link_has_a_track(events):
    links = {name for (process, _), name in tracks(events).items() if process == LINKS_PROCESS}
    # the ring all-reduce sends forwards only, and so does the message
    assert links == {f"gpu{rank}>gpu{(rank + 1) % 5}" for rank in range(5)}


def test_a_slice_shows_when_a_node_ran_in_microseconds(events, result):
    compute = [e for e in events if e["ph"] == "X" and e["pid"] == 0 and e["name"] == "node0"]
    assert [(e["ts"], e["dur"]) for e in compute] == [(0.0, 1.0)]
    receive = next(e for e in events if e["ph"] == "X" and e["pid"] == 2 and e["args"].get("bytes") == 500)
    # asked for at 0; the sender came at 1 us
    assert receive["ts"] == 0.0
    assert receive["args"]["waited_us"] == 1.0


def test_slices_of_a_track_do_not_overlap(events):
    by_track: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            by_track.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["dur"]))
    assert set(by_track) == set(tracks(events))
    for slices in by_track.values():
        slices.sort()
        for (start, duration), (following, _) in zip(slices, slices[1:], strict=False):
            assert following >= start + duration - 1e-9


def test_an_arrow_leads_from_the_sender_to_the_first_link_of_each_message(events):
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    # 5 ranks * 2 * 4 pieces of the all-reduce, and the message
    assert len(starts) == len(ends) == 41
    known = tracks(events)
    for flow, start in starts.items():
        assert ends[flow]["pid"] == LINKS_PROCESS
        sender = known[LINKS_PROCESS, ends[flow]["tid"]].split(">")[0]
        assert sender == f"gpu{start['pid']}"
        assert known[start["pid"], start["tid"]] in ("dp", "pp-send")
        assert start["ts"] == ends[flow]["ts"]


def test_a_timeline_without_a_trail_has_ranks_only(tmp_path):
    nodes = Nodes()
    nodes.collective(ALL_REDUCE, 500)
    plain = replay(trace_set([nodes, nodes]), machine(ring(2)))
    plain.write_timeline(tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["traceEvents"]
    assert {e["pid"] for e in events} == {0, 1}
    assert Counter(e["ph"] for e in events)["X"] == 2


def test_ranks_and_a_window_choose_what_is_on_a_timeline(result, tmp_path):
    result.write_timeline(tmp_path / "t.json", Extract.parse("0,3-4", "1us:2us"))
    events = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["traceEvents"]
    assert {e["pid"] for e in events} == {0, 3, 4, LINKS_PROCESS}
    slices = [e for e in events if e["ph"] == "X"]
    assert slices
    assert all(e["ts"] < 2 and e["ts"] + e["dur"] > 1 for e in slices)
    assert {e["args"]["rank"] for e in slices if e["pid"] == LINKS_PROCESS} <= {0, 3, 4}
    with pytest.raises(InputError, match="rank 5: the run has ranks 0 to 4"):
        result.write_timeline(tmp_path / "t.json", Extract.parse("5", None))


def test_a_timeline_that_ends_in_gz_is_packed(result, tmp_path):
    result.write_timeline(tmp_path / "t.json")
    result.write_timeline(tmp_path / "t.json.gz")
    assert gzip.decompress((tmp_path / "t.json.gz").read_bytes()) == (tmp_path / "t.json").read_bytes()


def test_compute_slices_say_their_work(tmp_path):
    path = tmp_path / "t.json"
    assert call("run", "llama2_7b_train", "--on", "dgx_a100", "--timeline", path, "--ranks", 0).code == 0
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    assert {e["pid"] for e in events} == {0}
    assert any(e["args"].get("flops", 0) > 0 and e["args"]["hbm_bytes"] > 0 for e in events if e["ph"] == "X")


def test_a_timeline_that_is_too_large_is_refused_before_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(timeline, "LARGEST", 10_000)
    path = tmp_path / "t.json"
    words = ("run", "llama2_7b_train", "--on", "dgx_a100", "--timeline", path)
    answer = call(*words)
    assert "--timeline: about 13 MB in" in refused(answer)
    assert not answer.out
    windowed = call(*words, "--window", "1s:2s")  # known only afterwards: the report is there
    assert "more than" in refused(windowed)
    assert "step time" in windowed.out
    assert call(*words, "--force").code == 0
    assert path.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--ranks", "0"), "--ranks says what is on a timeline"),
        (("--messages",), "--messages says what is on a timeline"),
        (("--timeline", "t.json", "--ranks", "1-x"), "--ranks: '1-x' is no rank"),
        (("--timeline", "t.json", "--ranks", ""), "--ranks: '' is no rank"),
        (("--timeline", "t.json", "--ranks", "3-1"), "--ranks: '3-1' holds no rank"),
        (("--timeline", "t.json", "--window", "1s"), "--window: '1s' is not FROM:UNTIL"),
        (("--timeline", "t.json", "--window", "2s:1s"), "--window: '2s:1s' is not FROM:UNTIL"),
        (("--timeline", "t.json", "--window", "1:2"), "--window: '1' has no unit"),
    ],
)
def test_what_is_wanted_of_a_timeline_is_checked_first(words, said):
    assert said in refused(call("run", "nowhere.yaml", "--on", "dgx_a100", *words))


def test_idle_links_are_in_the_table(result, tmp_path):
    rows = result.links()
    assert {row.link for row in rows} == {
        f"gpu{a}>gpu{b}" for a in range(5) for b in ((a + 1) % 5, (a - 1) % 5)
    }
    idle = [row for row in rows if row.link == "gpu1>gpu0"]
    assert [(row.kind, row.bytes, row.busy_s, row.utilisation) for row in idle] == [("", 0, 0.0, 0.0)]


def test_the_link_table_has_its_columns_and_adds_up(result, tmp_path):
    result.write_links(tmp_path / "links.csv")
    with (tmp_path / "links.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert COLUMNS[:6] == ("link", "source", "destination", "dimension", "kind", "bytes")
    by_kind: Counter[str] = Counter()
    for row in rows:
        by_kind[row["kind"]] += int(row["bytes"])
        assert row["link"] == f"gpu{row['source']}>gpu{row['destination']}"
        assert row["dimension"] == "d0"
        # 1 GB/s
        assert float(row["busy_s"]) == pytest.approx(int(row["bytes"]) / 1e9, rel=1e-9)
        assert float(row["utilisation"]) == pytest.approx(float(row["busy_s"]) / (result.step_time / 1e12))
    # two hops of 500 B; every rank sends 8 pieces of 100 B
    assert by_kind == {"pp": 1000, "dp": 5 * 800, "": 0}
