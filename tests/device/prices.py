"""One operator's estimate on a device, with all that was priced before remembered."""

from rapid_des.bounded_cache import BoundedCache
from rapid_des.device.pricing import operator_model

MEMORY = BoundedCache(1 << 30)


def estimate_of(device, operator):
    return operator_model(device, MEMORY).estimate(operator)
