"""A step of building a wheel: write the kernels' object file, and print the name of its library."""

import platform
import sys
from pathlib import Path

from rapid_des.compiling.emit import object_code
from rapid_des.compiling.library import PACKAGE

if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(object_code(PACKAGE.modules, platform.machine())[1])
    sys.stdout.write(PACKAGE.shipped.name)
