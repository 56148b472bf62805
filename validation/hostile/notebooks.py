"""What notebooks show of hostile input: HTML without markup that a file brought in, of bounded size."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import rapid_des as rd
from rapid_des.config.texts import parse_json
from rapid_des.executors import InProcess
from rapid_des.inputs import printable, read_input
from validation.hostile.foreign import STUDY, as_part, kept_results, kept_rows
from validation.hostile.sample import Sample

LARGEST = 1 << 21
"""The most characters of HTML of one value."""
_TAGS = frozenset({"p", "pre", "table", "caption", "thead", "tbody", "tr", "th", "td"})
MARKUP = (
    "<script>x</script>", "<img src=x onerror=x>", "</td><td>", "</table>", "</pre><b>", "<!--", "-->", "<![CDATA[x]]>", "&lt;b&gt;",
    "&#60;b>", "<a href='javascript:x'>", '" onload="x', "' onload='x", "<style>*{}</style>", "<p", "<", ">", "&", "\u202ex\u202c",
    "\x1b[31m", "$$\\href{javascript:x}{y}$$", "é😀", "x" * 300, "<b>" * 20_000, "y" * 70_000,
)  # fmt: skip
"""What stands in place of a value that a notebook shows."""


_JOB = """model:
  {hidden: 1024, layers: 4, vocabulary: 32000, norm: rms_norm, position: rope, max_positions: 4096,
   tied_embeddings: false, attention: {heads: 16, kv_heads: 8, head_dim: 64},
   feed_forward: {activation: swiglu, hidden: 2816}}
software: {name: mine, communication: {default: {library: nccl}}}
phase: training
parallelism: {tp: 2, pp: 2, dp: 2, sequence_parallel: true}
training: {global_batch: 8, micro_batch: 1, sequence_length: 1024, schedule: 1f1b, zero_stage: 1}
"""


class _Elements(HTMLParser):
    """Follows the elements of HTML: those that a table or text has, without attributes, each one closed."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.wrong = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        if tag not in _TAGS or attrs:
            self.wrong = self.wrong or f"<{tag}> with {attrs}"

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong = self.wrong or f"</{tag}> that closes nothing"

    def handle_comment(self, data: str) -> None:
        self.wrong = self.wrong or f"a comment: {data[:50]}"

    def handle_decl(self, decl: str) -> None:
        self.handle_comment(decl)

    def unknown_decl(self, data: str) -> None:
        self.handle_comment(data)

    def handle_pi(self, data: str) -> None:
        self.handle_comment(data)


def wrong_html(html: str) -> str:
    """Return what is wrong with the HTML of a value; nothing if all is well.

    >>> wrong_html("<p>a &lt;b&gt;</p>"), wrong_html("<p><b></p>")
    ('', '<b> with []')
    """
    elements = _Elements()
    elements.feed(html)
    elements.close()
    if elements.wrong or elements.open:
        return elements.wrong or f"<{elements.open[-1]}> is not closed"
    if any(ord(letter) < 32 and letter not in "\t\n" or letter in "\u202d\u202e" for letter in html):
        return "a control character"
    return f"{len(html)} characters of HTML" if len(html) > LARGEST else ""


def notebook(words: Sequence[str]) -> None:
    """Print the HTML of a value: `notebook`, its kind, and the folder of its files."""
    try:
        html = _SHOWN[words[1]](Path(words[2]))._repr_html_()  # what a notebook calls
    except rd.RapidDesError as error:
        print(printable(str(error)), file=sys.stderr)
        sys.exit(error.exit_code)
    except Exception:  # noqa: BLE001 - what a notebook shows as a traceback is a defect
        traceback.print_exc()
        sys.exit(1)
    print(html, end="")


def _plan(folder: Path) -> rd.Plan:
    vary: dict[str, list[Any]] = {"tp": [8], "recompute": ["none"], "micro_batch": [1], "zero_stage": [0]}
    wanted = rd.Wanted(top=1, mode="analytical", vary=vary)
    return rd.plan(rd.load_job("llama2_7b_train"), rd.load_machine(folder / "m.yaml"), wanted, InProcess())


def _result(folder: Path) -> rd.Result:
    return rd.simulate(rd.load_job(folder / "j.yaml"), rd.load_machine(folder / "m.yaml"), mode="analytical")


def _difference(folder: Path) -> rd.Difference:
    texts = [read_input(folder / name).decode("utf-8", "replace") for name in ("a.json", "b.json")]
    return rd.difference(*(parse_json(text, folder) for text in texts))


def _faults(folder: Path) -> rd.FaultSample:
    job, machine = rd.load_job(folder / "j.yaml"), rd.load_machine("dgx_a100")
    fault = read_input(folder / "f.txt").decode("utf-8", "replace")
    return rd.faults_sample(
        {fault[:9]: job}, machine, [fault], draws=2, mode="analytical", executor=InProcess()
    )


_SHOWN: Mapping[str, Callable[[Path], Any]] = {
    "job": lambda folder: rd.load_job(folder / "j.yaml"),
    "machine": lambda folder: rd.load_machine(folder / "m.yaml"),
    "result": _result,
    "plan": _plan,
    "study": lambda folder: rd.load_study(folder / "s.yaml"),
    "sweep": lambda folder: rd.sweep(folder / "s.yaml", executor="local", limit=2),
    "store": lambda folder: rd.Sweep.opened(folder / "r"),
    "difference": _difference,
    "faults": _faults,
}


def notebooks(machine: str) -> dict[str, Sample]:
    """Return the kinds that notebooks show."""
    kept, rows = kept_results(), kept_rows()
    (part,) = (name for name in kept if name.endswith(".parquet"))
    beside = {name: content for name, content in kept.items() if name != part}
    on = machine.replace(", from: 1 ms, until: 2 ms", "").encode()
    job, study = (
        _JOB.encode(),
        STUDY.replace("axes:", "axes:\n  mine: {one: {}, two: {job.training.sequence_length: 64}}").encode(),
    )
    results = {"b.json": _as_json(8), "a.json": _as_json(4)}
    fault = b"random=gpus count=1 compute=uniform(0.5,0.9)"

    def shown(kind: str, names: str, files: Mapping[str, bytes], **how: Callable[[bytes], bytes]) -> Sample:
        words = ("notebook", kind, "@")
        return Sample(words, files, planted=MARKUP, names=tuple(names.split(" ")), **how)  # type: ignore[arg-type]

    return {
        "html job": shown("job", "mine kept", {"j.yaml": job}),
        "html machine": shown("machine", "small nvlink mine", {"m.yaml": on}),
        "html result": shown("result", "mine kept", {"j.yaml": job, "m.yaml": on}),
        "html result on": shown("result", "small nvlink mine", {"m.yaml": on, "j.yaml": job}),
        "html plan": shown("plan", "small nvlink mine", {"m.yaml": on}),
        "html study": shown("study", "mine one two small", {"s.yaml": study}),
        "html sweep": shown("sweep", "mine one two small", {"s.yaml": study}),
        "html store": shown("store", "hbm ok", {part: rows, **beside}, pack=as_part),
        "html difference": shown("difference", "tp layer dp compute", results),
        "html faults": shown("faults", "mine", {"j.yaml": job, "f.txt": fault}),
    }


def _as_json(tp: int) -> bytes:
    """Return what `run --json` prints of a step."""
    job = rd.load_job("llama2_7b_train").replace(tp=tp, dp=8 // tp, pp=1)
    return json.dumps(rd.simulate(job, rd.load_machine("dgx_a100"), mode="analytical").as_json()).encode()
