"""What all tests share: what is known of collectives alone, and a garbage collector that rests."""

import gc
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import pytest

from rapid_des.bounded_cache import BoundedCache

OBJECTS = 10_000
"""New objects after which the collector looks at the youngest; with 700 it takes 4 % of some files."""

OF_NETWORKS = {"auto", "idle", "lags", "laid", "routes", "template", "transfers"}
"""What follows from a key that starts with one of these is a collective alone (`program.collectives`)."""
SHARED = BoundedCache(1 << 27)
"""What the tests of one process know of collectives alone, as the points of a sweep or a plan do.

Tests simulate the same few machines again and again, and to lower their collectives again took a third of
the time of some files. That a cache changes no result is for `test_bounded_cache`, which shares nothing.
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
    """Ask the shared cache for what is known of collectives alone, and the cache itself for all else."""
    of_networks = isinstance(key, tuple) and key != () and key[0] in OF_NETWORKS
    return _get_or_make(SHARED if of_networks and SHARES[0] else cache, key, make, weight=weight)


pytest.MonkeyPatch().setattr(BoundedCache, "get_or_make", get_or_make)


@pytest.fixture
def own_caches() -> None:
    """Tests of what is cached, or of what is worked out how often, ask for this and share nothing."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let a test share nothing that asks for that, or whose parameters name an engine."""
    SHARES[0] = {"own_caches", "engine"}.isdisjoint(getattr(item, "fixturenames", ()))
    try:
        return (yield)
    finally:
        SHARES[0] = True


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect tests without the collector, and keep modules and tests, which live to the end, from it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(OBJECTS)
