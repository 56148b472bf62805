"""Files of ASTRA-sim's other network backends, which are refused by what they are: ns-3's and htsim's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from rapid_des.config.documents import read_text
from rapid_des.errors import ConfigError

_KINDS: Mapping[str, re.Pattern[str]] = {
    "the configuration of ASTRA-sim's ns-3 backend": re.compile(r"(ENABLE_QCN|TOPOLOGY_FILE|CC_MODE)\s+\S"),
    "the logical topology of ASTRA-sim's ns-3 backend": re.compile(r'[{\s]*"logical-dims"'),
    "a physical topology of ASTRA-sim's ns-3 backend": re.compile(r"\d+ \d+ \d+\s*\Z"),
    "a topology or a connection matrix of htsim": re.compile(r"(Nodes|Tiers|Podsize|Connections)\s+\d+\s*\Z"),
}
"""What a line near the beginning of each kind of file looks like."""
_LINES = 20


def refuse_other_backends(path: Path) -> None:
    """Raise `ConfigError` for a file of another backend than the analytical one, and say what to give."""
    for line in islice(read_text(path).splitlines(), _LINES):
        for kind, pattern in _KINDS.items():
            if pattern.match(line):
                instead = (
                    "the network.yml of the analytical backend (topology, npus_count, bandwidth, latency)"
                )
                problem = f"is {kind}, which is not read; --astra-network takes {instead}"
                raise ConfigError(f"{problem}, and --on a machine file with any fabric", file=str(path))
