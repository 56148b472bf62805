"""The standard speed cases under pytest-benchmark: `pytest -m benchmark tests/benchmarks`."""

from __future__ import annotations

import pytest

from rapid_des.studies.bench_cases import CASES


@pytest.mark.benchmark
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.large])
def test_standard_case(benchmark, name):
    outcome = benchmark.pedantic(CASES[name].run, rounds=3, warmup_rounds=1)
    benchmark.extra_info["hops"] = outcome.hops
    assert outcome.finish == CASES[name].finish
