"""Predictions against measurements: how they are scored, and where the topics come from."""

from rapid_des.validation.folder import DataFolder, open_folder
from rapid_des.validation.scoring import Row, Topic, is_calibration, score
from rapid_des.validation.suite import table, validate

__all__ = ["DataFolder", "Row", "Topic", "is_calibration", "open_folder", "score", "table", "validate"]
