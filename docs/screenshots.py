"""Takes the pictures of pages in docs/pictures: `python docs/screenshots.py` from the repository's root.

It needs Chromium and `pip install '.[browser,ui]'`.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

PICTURES = Path(__file__).parent / "pictures"
COMMAND = (sys.executable, "cli.py")
REPORTS = {
    "run": "run llama2_7b_train --on dgx_a100",
    "sweep": "sweep llama2_7b_splits --limit 8",
    "serve": "serve llama3_1_70b_serve --on dgx_h100 --slo 'ttft=1s tpot=40ms'",
    "goodput": "goodput llama3_1_70b_train_1024 --on dgx_h100_superpod_128 --reliability llama3_h100 "
    "--days 10 --replications 5",
    "faults": "faults sample llama2_7b_train --on torus_2d_a100 --draws 20 --set job.model.layers=4 "
    "--fault 'random=links count=1 bandwidth=normal(0.5,0.1)'",
}
"""Reports, and the commands that write them."""
_WIDTH, _HEIGHT, _QUALITY = 1100, 760, 60


def main() -> None:
    """Take the pictures that are named, or all of them."""
    from playwright.sync_api import sync_playwright

    chosen = sys.argv[1:] or [*REPORTS, "ui_step"]
    with TemporaryDirectory() as folder, sync_playwright() as running:
        browser = running.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": _WIDTH, "height": _HEIGHT})
        for name in chosen:
            with _address(name, Path(folder)) as address:
                page.goto(address)
                if name == "ui_step":
                    page.wait_for_selector("[data-key] input[type=range]")
                    page.wait_for_selector("#result[data-kind=exact]:not(.late)", timeout=120_000)
                _take(page, name)
        browser.close()


@contextmanager
def _address(name: str, folder: Path) -> Iterator[str]:
    """Yield where a page is: the file of a report, or the application while it runs."""
    if name != "ui_step":
        out = folder / f"{name}.html"
        words = [*COMMAND, *shlex.split(REPORTS[name]), "--report", str(out)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        yield out.as_uri()
        return
    words = [*COMMAND, "ui", "--no-browser", "--folder", str(folder / "ui")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        yield next(word for word in served.stdout.readline().split() if word.startswith("http"))
        served.terminate()


def _take(page: Page, name: str) -> None:
    page.screenshot(path=PICTURES / f"{name}.jpg", type="jpeg", quality=_QUALITY)


if __name__ == "__main__":
    main()
