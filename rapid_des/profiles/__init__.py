"""Profiles of real runs: reading, classing kernels, where the time of steps goes, and their replay."""

from rapid_des.profiles.breakdown import ProfileReport, profile_report
from rapid_des.profiles.events import Profile
from rapid_des.profiles.reading import is_profile, read_profile, read_profiles, read_run
from rapid_des.profiles.replay import ReplayedStep, replay_step

__all__ = [
    "Profile",
    "ProfileReport",
    "ReplayedStep",
    "is_profile",
    "profile_report",
    "read_profile",
    "read_profiles",
    "read_run",
    "replay_step",
]
