"""Faults that come and go: timetables, closures and replanning."""
