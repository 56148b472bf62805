"""Predictions against measurements: how they are scored, and where the topics come from.

It ships with the library because `rapid-des validate --data DIR` judges predictions by a user's own
measurements, and `device calibrate` fits a user's device to them with the same readers and the same split.
No other command imports it.
"""

from rapid_des.validation.measurements import DataFolder, open_folder
from rapid_des.validation.registry import validate
from rapid_des.validation.scoring import Row, Topic, is_calibration, score

__all__ = ["DataFolder", "Row", "Topic", "is_calibration", "open_folder", "score", "validate"]
