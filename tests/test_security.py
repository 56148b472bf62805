"""SECURITY.md states the limits that the code has."""

import re
from pathlib import Path

import pytest

from rapid_des import inputs
from rapid_des.config import texts
from rapid_des.importers import keys
from rapid_des.importers.megatron import shell
from rapid_des.serving import trace_files, workload
from rapid_des.studies import store

TEXT = (Path(__file__).parents[1] / "SECURITY.md").read_text()
ROWS = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|$", TEXT, re.MULTILINE))
KINDS = [kind for kind in vars(inputs).values() if isinstance(kind, inputs.Kind)]
STATED = {
    "a table of requests": [
        f"{trace_files._MOST_ROWS:,} rows",
        f"{trace_files._MOST:,} tokens",
        f"{workload.LATEST_S // 86_400} days",
    ],
    "a part of a study's results": [f"{store.MOST_ROWS:,} rows"],
    "YAML": [f"{texts.DEEPEST} levels", f"{texts.MOST_NODES:,} values"],
    "JSON": [
        f"{texts.DEEPEST} levels",
        f"{texts._MOST_JSON:,} values",
        f"up to {texts._MOST_WHOLE} digits",
    ],
    "TOML": [
        f"{texts.DEEPEST} levels",
        f"{texts._LONGEST_TOML:,} characters",
        f"{texts._MOST_DOTS:,} dots",
    ],
    "a shell script that is imported": [f"{shell._LONGEST:,} characters"],
    "a model that is imported": [f"{keys.MOST_LAYERS:,} layers"],
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_of_input_has_its_size_there(kind):
    (stated,) = [limit for name, limit in ROWS.items() if name.partition(" (")[0] == kind.name]
    assert re.split("[,;] ", stated)[0] == f"{kind.most >> 20:,} MiB"


@pytest.mark.parametrize("name", STATED)
def test_other_limits_are_those_of_the_code(name):
    assert [limit for limit in STATED[name] if limit not in ROWS[name]] == []
