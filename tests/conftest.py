"""What all tests share: what collectives take by themselves, and a garbage collector with little to look at."""

import gc
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import pytest

from rapid_des.bounded_cache import BoundedCache

OBJECTS = 10_000
"""New objects after which the collector looks at the youngest; Python's 700 cost a thirtieth of all tests' time."""

OF_NETWORKS = {"auto", "idle", "lags", "laid", "routes", "template", "transfers"}
"""Of a key that starts with one of these follows what a collective is and takes alone (`program.collectives`)."""
SHARED = BoundedCache(1 << 27)
"""What the tests of one process know of collectives, as the points of a sweep or a plan do.

Most machines of tests are the same few, whose collectives were lowered again by each test: two fifths of the
time of some files. That a cache changes no result is for `test_bounded_cache`.
"""
SHARES = [True]
_get_or_make = BoundedCache.get_or_make


def get_or_make(
    cache: BoundedCache,
    key: Hashable,
    make: Callable[[], Any],
    *,
    weight: Callable[[Any], int] | None = None,
) -> Any:
    """Ask the shared cache for what is known of collectives alone, and a test's own for all else."""
    of_networks = isinstance(key, tuple) and key != () and key[0] in OF_NETWORKS
    return _get_or_make(SHARED if of_networks and SHARES[0] else cache, key, make, weight=weight)


pytest.MonkeyPatch().setattr(BoundedCache, "get_or_make", get_or_make)


@pytest.fixture
def own_caches() -> None:
    """Tests of what is cached ask for this, and then share nothing with others."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let a test share nothing if it asks for that, or may change what follows from a key."""
    SHARES[0] = {"own_caches", "monkeypatch", "engine"}.isdisjoint(getattr(item, "fixturenames", ()))
    try:
        return (yield)
    finally:
        SHARES[0] = True


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect tests without the collector, and leave modules and tests, which live to the end, out of its sight."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(OBJECTS)
