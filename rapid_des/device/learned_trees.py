"""Ensembles of regression trees as flat arrays: evaluated by numpy, stored without any code."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LEAF = -1
"""The feature index of a leaf."""


@dataclass(frozen=True)
class Forest:
    """Trees laid one after the other; node i goes to `left[i]` if its feature is at most the threshold.

    The prediction is `offset` plus `scale` times the sum of one leaf of every tree (a mean of trees has scale
    1/n, boosting its learning rate). Features are compared in float32, as the trees were grown.
    """

    roots: npt.NDArray[np.int32]
    feature: npt.NDArray[np.int16]
    threshold: Floats
    left: npt.NDArray[np.int32]
    right: npt.NDArray[np.int32]
    value: npt.NDArray[np.float32]
    scale: float
    offset: float

    def predict(self, features: Floats) -> Floats:
        """Return one number for each row of `features`."""
        rows = features.astype(np.float32)
        nodes = np.repeat(self.roots[None, :], len(rows), axis=0)
        index = np.arange(len(rows))[:, None]
        while True:
            feature = self.feature[nodes]
            inner = feature != LEAF
            if not inner.any():
                break
            low = rows[index, np.where(inner, feature, 0)] <= self.threshold[nodes]
            nodes = np.where(inner, np.where(low, self.left[nodes], self.right[nodes]), nodes)
        total: Floats = self.value[nodes].astype(np.float64).sum(axis=1)
        return self.offset + self.scale * total

    def arrays(self, prefix: str) -> dict[str, npt.NDArray[np.generic]]:
        """Return what a file holds of the forest, under names that start with `prefix`."""
        fields: dict[str, npt.NDArray[np.generic]] = {
            name: getattr(self, name) for name in ("roots", "feature", "threshold", "left", "right", "value")
        }
        fields["ends"] = np.array([self.scale, self.offset])
        return {f"{prefix}.{name}": array for name, array in fields.items()}

    @classmethod
    def from_arrays(cls, stored: dict[str, npt.NDArray[np.generic]], prefix: str) -> Forest:
        """Return the forest that `arrays` described."""
        scale, offset = (float(number) for number in stored[f"{prefix}.ends"])
        return cls(
            roots=stored[f"{prefix}.roots"].astype(np.int32),
            feature=stored[f"{prefix}.feature"].astype(np.int16),
            threshold=stored[f"{prefix}.threshold"].astype(np.float64),
            left=stored[f"{prefix}.left"].astype(np.int32),
            right=stored[f"{prefix}.right"].astype(np.int32),
            value=stored[f"{prefix}.value"].astype(np.float32),
            scale=scale,
            offset=offset,
        )
