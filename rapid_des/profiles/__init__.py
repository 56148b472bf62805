"""Profiles of PyTorch's profiler (Kineto): reading, classing kernels, and where the time of steps goes."""

from rapid_des.profiles.breakdown import ProfileReport, profile_report
from rapid_des.profiles.events import Profile, read_profile

__all__ = ["Profile", "ProfileReport", "profile_report", "read_profile"]
