"""Schedules that take backwards apart, into gradients of inputs and of weights: zero bubble and DualPipe.

Zero bubble: weight gradients fill what stages would wait (Qi et al. 2023, arXiv 2401.10241).

With F, B and W for forward, input gradient and weight gradient, the bubble of a stage from its first item to
its last is (p - 1)·(F + B - W) in ZB-H1 and (p - 1)·(F + B - 2W) in ZB-H2; ZB-V has none where all three take
equally long. A step starts on all stages at once here: that a stage may begin the next one while others
still end this one, for which the paper validates the optimizer's step afterwards, is not part of an order.

DualPipe and DualPipeV: forwards of one chunk run beside backwards of the other (arXiv 2412.19437).

DualPipe feeds micro-batches from both ends: stage s holds parts s and p - 1 - s, the second for those that
come from the far end, so every part stands on two stages, which sum their gradients. DualPipeV is one half
of it, cut in the middle: stage s of h holds parts s and 2h - 1 - s, and all micro-batches go down and up
again. With a pair F&B, a whole backward B and a weight gradient W, the paper gives a bubble of
(p/2 - 1)·(F&B + B - 3W) and p + 1 chunks in flight, p being 2h in DualPipeV.
"""

from __future__ import annotations

from rapid_des.frontend.schedules.schedule import Order, PipelineShape, Placement, Run, order_of


def v_shape(stages: int, chunks: int) -> Placement:
    """Return the placement that goes down the stages and back: stage s holds parts s and 2·stages - 1 - s.

    >>> v_shape(2, 2)
    ((0, 3), (1, 2))
    """
    assert chunks == 2
    return tuple((stage, 2 * stages - 1 - stage) for stage in range(stages))


def zb_h1(shape: PipelineShape) -> tuple[Order, ...]:
    """Return 1F1B whose stage s runs each weight gradient s micro-batches late: as much in flight as 1F1B.

    >>> [str(item) for item in zb_h1(Shape(2, 3))[1]]
    ['F0', 'I0', 'F1', 'I1', 'W0', 'F2', 'I2', 'W1', 'W2']
    """
    return tuple(_late(shape, shape.stages - 1 - stage, stage) for stage in range(shape.stages))


def zb_h2(shape: PipelineShape) -> tuple[Order, ...]:
    """Return ZB-H1 with twice the warm-up and twice the delay: 2·stages - 1 micro-batches in flight."""
    return tuple(_late(shape, 2 * (shape.stages - 1 - stage), 2 * stage) for stage in range(shape.stages))


def _late(shape: PipelineShape, warm_up: int, delay: int) -> Order:
    count = shape.micro_batches
    runs = [("F0", warm_up), ("F0 I0", min(delay, count)), ("F0 I0 W", count), ("W", count)]
    return order_of(runs, [range(count)])


def zb_v(shape: PipelineShape) -> tuple[Order, ...]:
    """Return ZB-V: every stage fills its 2·stages chunks in flight until the first gradient is there.

    That arrives at stage s when it has run 2·stages chunks without a pause: the first chunk alone until the
    second's input has gone down the V and up again to s, then both in turn. Weight gradients follow their
    input gradients, but for those of the end, which fill it.
    """
    return tuple(_v_order(shape, stage) for stage in range(shape.stages))


def _v_order(shape: PipelineShape, stage: int) -> Order:
    stages, count = shape.stages, shape.micro_batches
    runs = [
        ("F0", 2 * (stages - stage) - 1),
        ("F1 F0", stage),
        ("F1 I1 W", stages - stage),
        ("F0 I0 W F1 I1 W", count - stages),
        ("I0 I1", stage),
        ("I0 W", stages - stage),
        ("I0 I1", count),
        ("W", 2 * count),
    ]
    return order_of(runs, [range(count)] * 2)


def mirrored(stages: int, chunks: int) -> Placement:
    """Return the placement with two copies of each part: stage s holds parts s and stages - 1 - s.

    >>> mirrored(4, 2)
    ((0, 3), (1, 2), (2, 1), (3, 0))
    """
    assert chunks == 2
    return tuple((stage, stages - 1 - stage) for stage in range(stages))


def _runs(half: int, distance: int, count: int) -> list[Run]:
    """Return a stage's runs, `distance` from its end of a half, for `count` micro-batches in each direction.

    Chunk 0 is the one whose micro-batches come from the stage's own end. Stages warm up with it, take turns
    until gradients arrive, pair forwards with backwards of the other chunk, and end on halves of backwards
    that fill the pauses.
    """
    inner = half - 1 - distance
    pairs = count - 2 * half + distance + 1
    first = ["F0 B1 F1&B0"] if inner == 0 and pairs > 0 else []
    return [
        ("F0", 2 * inner),
        ("F0 F1", distance + 1),
        ("I1 W F1", inner),
        *((pattern, 1) for pattern in first),
        ("F0&B1 F1&B0", pairs - len(first)),
        ("B1 F1&B0", inner),
        (_last_backwards(distance + 1), 1),
        ("W I0", inner),
        ("W", distance + 1),
    ]


def _last_backwards(pairs: int) -> str:
    """Return that many backwards of each chunk in turn, the second half of them without weight gradients."""
    words = [word for _ in range(pairs) for word in ("B1", "B0")]
    return " ".join(word if place < pairs else word.replace("B", "I") for place, word in enumerate(words))


def dual_pipe(shape: PipelineShape) -> tuple[Order, ...]:
    """Return DualPipe; even micro-batches enter at the first stage, odd ones at the last."""
    half, each = shape.stages // 2, shape.micro_batches // 2
    near, far = (range(end, shape.micro_batches, 2) for end in (0, 1))
    first = [order_of(_runs(half, stage, each), (near, far)) for stage in range(half)]
    second = [order_of(_runs(half, stage, each), (far, near)) for stage in reversed(range(half))]
    return (*first, *(_swapped(order) for order in second))


def _swapped(order: Order) -> Order:
    """Return an order with its chunks' numbers exchanged."""
    return tuple(item._replace(chunk=1 - item.chunk) for item in order)


def dual_pipe_v(shape: PipelineShape) -> tuple[Order, ...]:
    """Return DualPipeV."""
    every = range(shape.micro_batches)
    return tuple(
        order_of(_runs(shape.stages, stage, shape.micro_batches), (every, every))
        for stage in range(shape.stages)
    )


def dual_pipe_refusal(shape: PipelineShape) -> str | None:
    """Return why the number of micro-batches does not fill both directions."""
    if shape.stages % 2 or shape.micro_batches % 2:
        return f"dualpipe needs pp and micro-batches even, they are {shape.stages} and {shape.micro_batches}"
    return _too_few("dualpipe", shape)


def dual_pipe_v_refusal(shape: PipelineShape) -> str | None:
    """Return why the number of micro-batches does not fill the V."""
    return _too_few("dualpipe_v", shape)


def _too_few(name: str, shape: PipelineShape) -> str | None:
    if shape.micro_batches < 2 * shape.stages:
        return (
            f"{name} needs at least 2·pp = {2 * shape.stages} micro-batches, there are {shape.micro_batches}"
        )
    return None
