"""The documentation site: `sphinx-build -W docs OUT`, with the extra `docs` installed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import generate  # noqa: E402 - the path is set above

from rapid_des import __version__  # noqa: E402

project = "rapid_des"
author = "The rapid_des contributors"
release = __version__
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"rapid_des {release}"
html_copy_source = False
html_show_copyright = False


def setup(app: Any) -> None:  # noqa: ARG001 - Sphinx passes itself
    """Write the generated pages before Sphinx looks for files."""
    generate.write(HERE / "generated")
