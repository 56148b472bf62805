"""Zero-bubble schedules: weight gradients fill what stages would wait (Qi et al. 2023, arXiv 2401.10241).

With F, B and W for forward, input gradient and weight gradient, the bubble of a stage from its first item to
its last is (p - 1)·(F + B - W) in ZB-H1 and (p - 1)·(F + B - 2W) in ZB-H2; ZB-V has none where all three take
equally long. A step starts on all stages at once here: that a stage may begin the next one while others
still end this one, for which the paper validates the optimizer's step afterwards, is not part of an order.
"""

from __future__ import annotations

from rapid_des.frontend.schedules.plan import Order, Placement, Shape, order_of


def v_shape(stages: int, chunks: int) -> Placement:
    """Return the placement that goes down the stages and back: stage s holds parts s and 2·stages - 1 - s.

    >>> v_shape(2, 2)
    ((0, 3), (1, 2))
    """
    assert chunks == 2
    return tuple((stage, 2 * stages - 1 - stage) for stage in range(stages))


def zb_h1(shape: Shape) -> tuple[Order, ...]:
    """Return 1F1B whose stage s runs each weight gradient s micro-batches late: as much in flight as 1F1B.

    >>> [str(item) for item in zb_h1(Shape(2, 3))[1]]
    ['F0', 'I0', 'F1', 'I1', 'W0', 'F2', 'I2', 'W1', 'W2']
    """
    return tuple(_late(shape, shape.stages - 1 - stage, stage) for stage in range(shape.stages))


def zb_h2(shape: Shape) -> tuple[Order, ...]:
    """Return ZB-H1 with twice the warm-up and twice the delay: 2·stages - 1 micro-batches in flight."""
    return tuple(_late(shape, 2 * (shape.stages - 1 - stage), 2 * stage) for stage in range(shape.stages))


def _late(shape: Shape, warm_up: int, delay: int) -> Order:
    count = shape.micro_batches
    runs = [("F0", warm_up), ("F0 I0", min(delay, count)), ("F0 I0 W", count), ("W", count)]
    return order_of(runs, [range(count)])


def zb_v(shape: Shape) -> tuple[Order, ...]:
    """Return ZB-V: every stage fills its 2·stages chunks in flight until the first gradient is there.

    That arrives at stage s when it has run 2·stages chunks without a pause: the first chunk alone until the
    second's input has gone down the V and up again to s, then both in turn. Weight gradients follow their
    input gradients, but for those of the end, which fill it.
    """
    return tuple(_v_order(shape, stage) for stage in range(shape.stages))


def _v_order(shape: Shape, stage: int) -> Order:
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
