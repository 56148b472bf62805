"""Run the README's commands and write what they print below them, and its accuracy table.

`python -m validation.refresh_readme` rewrites its `$ rapid-des` blocks and what stands between the markers.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rapid_des.cli.main import main
from validation import open_folder, validate

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(
    r"(```console\n\$ rapid-des (?P<words>[^\n|]+)(?:\| head -(?P<lines>\d+))?\n).*?(```)", re.DOTALL
)
TABLE = re.compile(r"(<!-- accuracy:[^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)
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


def refreshed(text: str) -> str:
    """Return the README with the output of its commands as of now."""
    return BLOCK.sub(lambda block: f"{block[1]}{_printed(block['words'], block['lines'])}{block[4]}", text)


def _printed(words: str, lines: str | None) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        main(shlex.split(words))
    kept = out.getvalue().splitlines()[: int(lines) if lines else None]
    return "".join(f"{line.rstrip()}\n" for line in kept)


def accuracy(report: Mapping[str, Any]) -> str:
    """Return the table of a validation report's chosen topics."""
    rows = ["| what | topic | rows | error | p90 | null |", "|---|---|---|---|---|---|"]
    for what, topic in TOPICS.items():
        found = report["topics"][topic]
        figures = [found[key] for key in ("mean_abs_pct", "p90_abs_pct", "null_mean_abs_pct")]
        cells = [what, f"`{topic}`", f"{found['rows']:,}", *(f"{figure:.1f}" for figure in figures)]
        rows.append(f"| {' | '.join(cells)} |")
    return "".join(f"{row}\n" for row in rows)


if __name__ == "__main__":
    text = refreshed(README.read_text())
    report = validate(open_folder(None), tuple(TOPICS.values()))
    README.write_text(TABLE.sub(lambda found: f"{found[1]}{accuracy(report)}{found[2]}", text))
