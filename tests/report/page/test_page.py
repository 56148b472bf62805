"""The page of a run: one file that loads nothing, escapes every name, and has the numbers of --json."""

import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import pytest

from rapid_des.errors import InputError
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.modes.pricing import price
from rapid_des.report.charts import Lane, Lanes, PageSection, PlotAxis, Span, TextFile
from rapid_des.report.critical_path import critical_path
from rapid_des.report.job_structure import explain
from rapid_des.report.page.details import timeline_section
from rapid_des.report.page.document import page
from rapid_des.report.page.lanes import lanes_html
from rapid_des.report.page.saved import saved_run
from rapid_des.report.page.svg import Scale, round_step
from rapid_des.report.page.whole_run import Explained, run_sections
from rapid_des.report.tables import Table, columns
from rapid_des.simulation import simulate
from rapid_des.studies.changes import CheckedChange

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'"
VOID = {"meta", "input", "br", "img", "link"}


class Reader(HTMLParser):
    """Collects the elements of a page, and checks that each is closed where it should be."""

    def __init__(self, text):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def named(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def small(phase, mode, **more):
    if phase == "training":
        settings = {"parallelism.tp": 2, "parallelism.pp": 2, "training.global_batch": 8, "model.layers": 4}
        job = load_job("llama2_7b_train", settings=settings | {"training.micro_batch": 1} | more)
    else:
        job = load_job(
            "llama2_7b_inference", settings={"model.layers": 2, "inference.output_length": 4} | more
        )
    machine = load_machine("dgx_a100")
    return job, machine, simulate(job, machine, mode=mode)


def made(job, machine, result):
    changes = [CheckedChange("links twice as fast", result.step_time, "compute", result.step_time)]
    inputs = [TextFile("job", job.as_yaml()), TextFile("machine", machine.as_yaml())]
    explained = Explained(critical_path(result), changes, explain(price(job, machine)), inputs)
    return page("a job", run_sections(result, explained), result.as_json(), command="rapid-des run a")


@pytest.mark.parametrize("mode", ["flattened", "hierarchical", "analytical"])
@pytest.mark.parametrize("phase", ["training", "inference"])
def test_a_page_has_every_section_and_the_numbers_of_json(phase, mode):
    job, machine, result = small(phase, mode)
    text = made(job, machine, result)
    read = Reader(text)
    sections = [attributes["id"] for attributes in read.named("section")]
    assert sections[:5] == ["in-short", "where-the-time-goes", "what-to-change", "critical-path", "timeline"]
    assert {"memory", "roofline", "operators", "fabric", "messages", "process-groups"} < set(sections)
    embedded = re.search(r'id="plain">(.*?)</script>', text, re.DOTALL)[1]
    assert json.loads(embedded) == json.loads(json.dumps(result.as_json()))
    assert str(result.step_time) in text
    assert len(text) < 1_000_000


def test_a_page_loads_nothing_and_runs_only_its_own_script():
    read = Reader(made(*small("training", "flattened")))
    for _, attributes in read.tags:
        assert not attributes.keys() & {"src", "srcset", "action", "data", "onclick", "onload"}
        assert attributes.get("href", "#").startswith("#")
    (policy,) = (each["content"] for each in read.named("meta") if "http-equiv" in each)
    assert policy.startswith("default-src 'none'")
    assert re.search(r"script-src 'sha256-[\w+/=]+'$", policy)
    assert len([each for each in read.named("script") if "type" not in each]) == 1
    style = files("rapid_des.report.page").joinpath("page.css").read_text()
    assert "url(" not in style
    assert "@import" not in style


def test_every_name_is_escaped():
    span = Span(0, 10, HOSTILE, HOSTILE)
    parts: list[Any] = [
        HOSTILE,
        {HOSTILE: HOSTILE},
        Table(HOSTILE, columns(a=HOSTILE), [{"a": HOSTILE}]),
        Lanes(HOSTILE, 10, [Lane(HOSTILE, [span])], [(HOSTILE, HOSTILE)]),
        TextFile(HOSTILE, HOSTILE),
    ]
    read = Reader(page(HOSTILE, [PageSection(HOSTILE, parts, HOSTILE)], {HOSTILE: HOSTILE}, command=HOSTILE))
    assert read.named("img") == []
    assert len([each for each in read.named("script") if "type" not in each]) == 1
    assert HOSTILE in read.texts


def test_lanes_carry_each_span_to_the_nanosecond():
    spans = [
        Span(0, 5_000, "a", "compute"),
        Span(7_000, 1_000_000, "b", "tp"),
        Span(1_007_000, 10, "a", "compute"),
    ]
    text = lanes_html(Lanes("t", 2_000_000, [Lane("rank 0", spans)]))
    data = json.loads(re.search(r'class="lanes">(.*?)</script>', text)[1])
    assert data["end"] == 2_000
    assert data["names"] == ["a", "b"]
    assert data["lanes"] == [{"name": "rank 0", "spans": [0, 5, 0, 0, 2, 1000, 1, 1, 0, 1, 0, 0]}]


def test_a_timeline_says_that_it_leaves_boxes_out(monkeypatch):
    _, _, result = small("training", "flattened")
    assert "the first" not in timeline_section(result, None).lead
    for room in ("page.details", "charts.timeline"):
        monkeypatch.setattr(f"rapid_des.report.{room}.MOST_SPANS", 5)
    section = timeline_section(result, None)
    assert "Of a stream it shows the first 5 boxes." in section.lead
    streams = [lane for lane in section.parts[0].lanes if lane.name.startswith("rank")]
    assert max(len(lane.spans) for lane in streams) == 5


def test_a_saved_result_has_the_sections_that_it_holds():
    _, _, result = small("training", "analytical")
    plain = json.loads(json.dumps(result.as_json()))
    titles = [section.title for section in saved_run(plain, "a.json")]
    assert titles == ["In short", "Where the time goes", "Memory", "Inputs and basis"]
    del plain["notes"]
    with pytest.raises(InputError, match=r"a\.json: not a result as `run --json` prints it: .*notes"):
        saved_run(plain, "a.json")


def test_axes_have_round_ticks():
    assert Scale(PlotAxis("", low=0, high=4.01), [], (0, 100)).ticks() == [0, 1, 2, 3, 4]
    assert Scale(PlotAxis("", log=True, low=0.5, high=2e3), [], (0, 1)).ticks() == [1, 10, 100, 1000]
    assert Scale(PlotAxis("", log=True), [30.0, 400.0], (0, 1)).ticks() == [50, 100, 200]
    assert round_step(0.0023) == pytest.approx(0.005)


def luminance(colour):
    if len(colour) == 4:
        colour = "#" + "".join(2 * letter for letter in colour[1:])
    parts = [value / 255 for value in bytes.fromhex(colour[1:])]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_texts_have_the_contrast_that_wcag_aa_asks_for():
    style = files("rapid_des.report.page").joinpath("page.css").read_text()
    light, dark = (
        dict(re.findall(r"--(paper|ink|soft|tint|link|ok|bad):(#\w+)", half))
        for half in style.split("@media")[:2]
    )
    for theme in (light, dark):
        for ink in ("ink", "soft", "link", "ok", "bad"):
            for paper in ("paper", "tint"):
                low, high = sorted(luminance(theme[name]) for name in (ink, paper))
                assert (high + 0.05) / (low + 0.05) >= 4.5, (ink, paper, theme)
