"""Images in prompts: an encoder makes tokens of them, on the GPUs of the replicas or on some of its own.

A job states the encoder: a vision transformer, its layout and software. Images take as long as they do in a
static batch, linear between powers of two. On the GPUs of a replica, the images of the requests
that an iteration begins are encoded before it, shared out over as many encoders as fit on the replica (vLLM's
`mm_encoder_tp_mode: data`). On GPUs of their own, an encoder takes the images of one request at a time.
"""

from __future__ import annotations

from heapq import heappop, heappush
from pathlib import Path

import numpy as np
from msgspec import Struct, field
from numpy.random import default_rng

from rapid_des.bounded_cache import BoundedCache
from rapid_des.errors import ConfigError
from rapid_des.frontend import Job, load_job
from rapid_des.frontend.servers import ImagesSpec
from rapid_des.machine import Machine
from rapid_des.serving.workload import Workload, parse_lengths
from rapid_des.simulation import step_time
from rapid_des.units import ceil_divide
from rapid_des.values import replace

_STREAM = 20
_MOST = 64
"""Number of images of a batch; more take several."""


class ImageEncoder(Struct):
    """The times of an encoder on a machine, in picoseconds."""

    job: Job
    machine: Machine
    beside: int = 1
    """Number of encoders that share the images out."""
    cache: BoundedCache | None = None
    _known: dict[int, int] = field(default_factory=dict)

    def time(self, images: int) -> int:
        """Return how long this number of images takes."""
        whole, rest = divmod(ceil_divide(images, self.beside), _MOST)
        return whole * self._at(_MOST) + self._few(rest)

    def _few(self, images: int) -> int:
        if not images:
            return 0
        high = 1 << (images - 1).bit_length()
        low = max(1, high // 2)
        if images in (low, high):
            return self._at(images)
        return self._at(low) + (self._at(high) - self._at(low)) * (images - low) // (high - low)

    def _at(self, images: int) -> int:
        if images not in self._known:
            job = load_job(self.job, settings={"inference.batch": images})
            self._known[images] = step_time(job, self.machine, cache=self.cache)
        return self._known[images]


class EncoderPool:
    """Encoders on GPUs of their own, each of which takes the images of one request at a time."""

    def __init__(self, encoder: ImageEncoder, number: int) -> None:
        self._encoder = encoder
        self.gpus = number * encoder.job.gpus
        self._free = [0] * number
        """The times at which they are free, as a heap."""

    def time(self, now: int, images: int) -> int:
        """Return how long the images of a request that comes now wait and take."""
        ready = max(now, heappop(self._free)) + self._encoder.time(images)
        heappush(self._free, ready)
        return ready - now


def encoder_of(
    job: Job, machine: Machine, spec: ImagesSpec, each: int, cache: BoundedCache | None
) -> ImageEncoder:
    """Return the encoder of a service, whose replicas have `each` GPUs."""
    try:
        encoder = load_job(spec.job, folder=Path(job.file).parent)
    except ConfigError as error:
        where = ": ".join(part for part in (error.file, error.key) if part)
        raise ConfigError(f"{where}: {error.message}", file=job.file, key="serving.images.job") from None
    if encoder.model.spec.patches is None:
        problem = f"{spec.job}: {encoder.model.name} reads no images: its model states no `patches`"
        raise ConfigError(problem, file=job.file, key="serving.images.job")
    _ = encoder.inference  # or it is no job that serves
    if not spec.encoders and encoder.gpus > each:
        problem = f"{spec.job} takes {encoder.gpus} GPUs, a replica has {each}; state `encoders`"
        raise ConfigError(problem, file=job.file, key="serving.images")
    return ImageEncoder(encoder, machine, 1 if spec.encoders else each // encoder.gpus, cache)


def encoders_of(job: Job, machine: Machine, encoder: ImageEncoder | None, first: int) -> EncoderPool | None:
    """Return the encoders on GPUs of their own, from the machine's GPU `first` on; None: there are none."""
    spec = None if job.spec.serving is None else job.spec.serving.images
    if encoder is None or spec is None or not spec.encoders:
        return None
    pool = EncoderPool(encoder, spec.encoders)
    if first + pool.gpus > machine.fabric.gpus:
        problem = (
            f"replicas and encoders take {first + pool.gpus} GPUs, the machine has {machine.fabric.gpus}"
        )
        raise ConfigError(problem, file=job.file, key="serving.images.encoders")
    return pool


def with_images(workload: Workload, spec: ImagesSpec, seed: int) -> Workload:
    """Return requests with images, and prompts with the tokens of these."""
    count, random = len(workload), default_rng([seed, _STREAM])
    having = random.random(count) < spec.share
    number = parse_lengths(str(spec.count), "serving.images.count").lengths(count, random) * having
    prompt = np.asarray(workload.prompt + number * spec.tokens, np.int64)
    return replace(workload, prompt=prompt, marks={**workload.marks, "images": number})
