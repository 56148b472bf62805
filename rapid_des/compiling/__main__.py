"""A step of building a wheel: write the kernels' object file, and print the name of its library.

The cache of a checkout serves the wheel too: both have the same machine code, and it is compiled once.
"""

import sys
from pathlib import Path

from rapid_des.compiling.library import PACKAGE

if __name__ == "__main__":
    _, _, code = PACKAGE.object_code().partition(b"\n")
    Path(sys.argv[1]).write_bytes(code)
    sys.stdout.write(PACKAGE.shipped.name)
