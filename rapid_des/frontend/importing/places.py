"""Numbered layers expressed as the exceptions of a model file."""

from __future__ import annotations


def spread(layers: list[int], total: int) -> list[dict[str, int]]:
    """Return numbered layers as `start`, `stop` and `every` of exceptions.

    >>> spread([0, 1, 2], 9), spread([1, 3, 5], 6), spread([0, 4, 5], 6)
    ([{'stop': 3}], [{'start': 1, 'every': 2}], [{'stop': 1}, {'start': 4}])
    """
    steps = {after - before for before, after in zip(layers, layers[1:], strict=False)}
    if len(layers) > 1 and len(steps) == 1:
        return [_places(layers[0], layers[-1], steps.pop(), total)]
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return [_places(run[0], run[-1], 1, total) for run in runs]


def _places(first: int, last: int, every: int, total: int) -> dict[str, int]:
    stop = {} if last + every >= total else {"stop": last + 1}
    return ({"start": first} if first else {}) | stop | ({"every": every} if every > 1 else {})
