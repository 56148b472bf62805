"""Faults that come and go: timetables, closures and what is planned anew."""
