"""What holds for every test: none leaves a process behind."""

import os

os.environ.setdefault("RAPID_DES_BACKGROUND", "0")
