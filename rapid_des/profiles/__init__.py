"""Profiles of PyTorch's profiler (Kineto): reading, classing kernels, and where the time of steps goes."""

from rapid_des.profiles.breakdown import ProfileReport, profile_report
from rapid_des.profiles.events import Profile, is_profile, read_profile
from rapid_des.profiles.replay import ReplayedStep, replay_step

__all__ = [
    "Profile",
    "ProfileReport",
    "ReplayedStep",
    "is_profile",
    "profile_report",
    "read_profile",
    "replay_step",
]
