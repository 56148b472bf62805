import sys
from pathlib import Path

# The oracle stands beside the package, in a checkout only.
sys.path.insert(0, str(Path(__file__).parents[2]))
