"""Calibration: a machine's files from what was measured on it."""

from rapid_des.studies.calibration.calibrate import Calibrated, Questions, calibrate_machine

__all__ = ["Calibrated", "Questions", "calibrate_machine"]
