"""Run the commands of the README and of all pages of docs, and write what they print below them.

`python -m validation.refresh_docs [PAGE ...]` rewrites the `$ rapid-des` blocks. Tables of accuracy are left
to `refresh_accuracy`, so that all state one commit: the errors of chosen topics (`docs/accuracy/kernels.md`),
and the README's five rows, which repeat rows of `docs/accuracy`.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rapid_des.cli.main import main
from validation import open_folder, validate
from validation.pages import ACCURACY, ROOT, as_of, fill, part

README = ROOT / "README.md"
KERNELS = ACCURACY / "kernels.md"
BLOCK = re.compile(
    r"(```console\n\$ rapid-des (?P<words>[^\n|]+)(?:\| head -(?P<lines>\d+))?\n).*?(```)", re.DOTALL
)
FILE = re.compile(r"```\{code-block\} \w+\n:caption: (\S+)\n\n(.*?)```", re.DOTALL)
"""A file that a page shows and its commands read."""
TOPICS = {
    "GEMM bf16, A100 SXM": "operators/gemm/A100-SXM4-80GB/bfloat16",
    "GEMM bf16, H100 SXM": "operators/gemm/H100-SXM-80GB/bfloat16",
    "GEMM fp8, H100 SXM": "operators/gemm/H100-SXM-80GB/fp8",
    "GEMM bf16, L40S": "operators/gemm/L40S/bfloat16",
    "attention prefill bf16, A100 SXM": "operators/attention/prefill/A100-SXM4-80GB/bfloat16",
    "attention prefill bf16, H100 SXM": "operators/attention/prefill/H100-SXM-80GB/bfloat16",
    "attention decode bf16, A100 SXM": "operators/attention/decode/A100-SXM4-80GB/bfloat16",
    "attention decode bf16, H100 SXM": "operators/attention/decode/H100-SXM-80GB/bfloat16",
    "NCCL all-gather from 1 MiB, A100 node": "network/nccl/A100-SXM4-80GB/all_gather/large",
    "NCCL all-gather from 1 MiB, B200 node": "network/nccl/B200-SXM/all_gather/large",
    "custom all-reduce, A100 node": "network/custom-all-reduce/A100-SXM4-80GB",
    "custom all-reduce, L40S over PCIe": "network/custom-all-reduce/L40S",
    "DeepEP dispatch and combine, H100": "network/deepep/H100-SXM-80GB",
    "Hybrid-EP's kernels, H100": "network/hybrid-ep/H100-SXM-80GB",
    "NCCL all-gather as run, from 1 MiB, A100 node": "network/as-run/nccl/A100-SXM4-80GB/all_gather/large",
    "NCCL as run on 1 to 10 H100 nodes, from 256 MiB": "network/as-run/ndr/large",
    "NCCL as run, from 1 MiB to there": "network/as-run/ndr/medium",
    "NCCL all-gather as run, AWS p5": "network/as-run/aws-p5/all_gather",
    "NCCL all-reduce as run, AWS p5": "network/as-run/aws-p5/all_reduce",
    "custom all-reduce as run, A100 node": "network/as-run/custom-all-reduce/A100-SXM4-80GB",
    "DeepEP as run, H100": "network/as-run/deepep/H100-SXM-80GB",
    "ns-3 without contention, `cut_through` as in machine files": "network/ns3-modes/cut_through/clean",
    "ns-3, flows share links, `cut_through`": "network/ns3-modes/cut_through/contended",
    "ns-3, ruled by congestion control, `cut_through`": "network/ns3-modes/cut_through/cc-dominated",
    "ns-3 without contention, windows stated": "network/ns3-modes/cut_through_window/clean",
    "ns-3, flows share links, windows stated": "network/ns3-modes/cut_through_window/contended",
    "ns-3, ruled by congestion control, windows stated": (
        "network/ns3-modes/cut_through_window/cc-dominated"
    ),
    "ns-3 without contention, `fluid`": "network/ns3/clean",
    "ns-3, flows share links, `fluid`": "network/ns3/contended",
    "ns-3, ruled by congestion control, `fluid`": "network/ns3/cc-dominated",
}
SHORT = (
    "GEMM bf16, H100 SXM",
    "attention prefill bf16, H100 SXM",
    "NCCL as run on 1 to 10 H100 nodes, from 256 MiB",
    "NVIDIA dgxc, H100, bf16",
    "vLLM under closed loops, time a token",
)
"""The README's rows, by their name in `docs/accuracy`."""


def refreshed(text: str) -> str:
    """Return a page with the output of its commands as of now; they run where the files that it shows are."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("validation").symlink_to(ROOT / "validation")
        write_files(text, Path(folder))
        sys.path.insert(0, folder)
        return BLOCK.sub(lambda block: f"{block[1]}{_printed(block)}{block[4]}", text)


def write_files(text: str, folder: Path) -> None:
    """Write the files that a page shows; a `pyproject.toml` among them is installed as pip would do it."""
    for name, content in FILE.findall(text):
        (folder / name).write_text(content, encoding="utf-8")
    if (folder / "pyproject.toml").is_file():
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        package, groups = project["name"].replace("-", "_"), project["entry-points"]
        information = folder / f"{package}-{project['version']}.dist-info"
        information.mkdir()
        head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        (information / "METADATA").write_text(head, encoding="utf-8")
        rows = [
            row for group, parts in groups.items() for row in (f"[{group}]", *map(" = ".join, parts.items()))
        ]
        (information / "entry_points.txt").write_text("\n".join(rows), encoding="utf-8")


def _printed(block: re.Match[str]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        main(shlex.split(block["words"]))
    lines = out.getvalue().splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines[: int(block["lines"] or len(lines))])


def short() -> Iterator[str]:
    """Yield the README's rows, each as `docs/accuracy` has it."""
    known: dict[str, dict[str, str]] = {}
    dates = set(re.findall(r"^As of (.*)\.$", part(KERNELS, "accuracy"), re.MULTILINE))
    for page in sorted(ACCURACY.glob("*.md")):
        names: list[str] = []
        for line in page.read_text(encoding="utf-8").splitlines():
            cells = [cell.strip() for cell in line.split("|")[1:-1]]
            names = cells if "null" in cells else names if cells else []
            known |= {cells[0]: dict(zip(names, cells, strict=True))} if names else {}
    yield from ("| what | error, % | simplest model, % |", "|---|---:|---:|")
    for name in SHORT:
        row = known[name]
        dates |= {row["as of"]} if "as of" in row else set()
        yield f"| {name} | {row.get('mean') or row['error']} | {row['null']} |"
    yield from ("", f"As of {', '.join(sorted(dates))}.")


def accuracy(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of a validation report's chosen topics."""
    yield from ("| what | topic | rows | error | p90 | null |", "|---|---|---|---|---|---|")
    for what, topic in TOPICS.items():
        found = report["topics"][topic]
        figures = [found[key] for key in ("mean_abs_pct", "p90_abs_pct", "null_mean_abs_pct")]
        cells = [what, f"`{topic}`", f"{found['rows']:,}", *(f"{figure:.1f}" for figure in figures)]
        yield f"| {' | '.join(cells)} |"
    yield from ("", f"As of {as_of()}.")


def refresh_tables() -> None:
    """Rewrite the table of kernels, collectives and networks, and the README's rows."""
    fill(KERNELS, "accuracy", accuracy(validate(open_folder(None), tuple(TOPICS.values()))))
    fill(README, "accuracy", short())


def refresh(pages: Sequence[Path] = ()) -> None:
    """Rewrite the blocks of pages; of all where none is named."""
    for page in pages or [README, *sorted((ROOT / "docs").rglob("*.md"))]:
        page.write_text(refreshed(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    refresh([Path(name).resolve() for name in sys.argv[1:]])
