"""Part of building a wheel: numba and LLVM compile the kernels, the system's linker makes a library of them.

Where there is no linker, or no machine code can be made, the wheel has none: kernels are then compiled by the
first run that pays for it, if numba is installed (the extra `compile`), or else interpreted.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LINKERS = ("cc", "gcc", "clang", "ld", "ld.lld")


class KernelsHook(BuildHookInterface):
    """Puts the kernels' machine code into wheels, which are then for one kind of machine."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile and link, except for an editable installation, whose sources change."""
        if version == "editable":
            return
        linker = next(filter(None, map(shutil.which, LINKERS)), None)
        if linker is None or platform.system() != "Linux":
            self.app.display_warning(f"no kernels in this wheel: they need Linux and one of {LINKERS}")
            return
        self._folder = Path(mkdtemp())
        code, library = self._folder / "kernels.o", self._folder / "kernels.so"
        made = subprocess.run(
            [sys.executable, "-m", "rapid_des.compiling", str(code)],
            cwd=self.root,
            check=True,
            capture_output=True,
            text=True,
        )
        subprocess.run([linker, "-shared", "-o", library, code, *_options(linker)], check=True)
        build_data["force_include"][str(library)] = f"rapid_des/compiling/{made.stdout.strip()}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def finalize(self, *_: Any) -> None:
        """Remove what has been copied into the wheel."""
        if hasattr(self, "_folder"):
            shutil.rmtree(self._folder)


def _options(linker: str) -> list[str]:
    """Return the options by which a library needs no other one, as the kernels call nobody."""
    return [] if Path(linker).name.startswith("ld") else ["-nostdlib"]
