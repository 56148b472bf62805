"""Measured jobs beside runs of them: rows of files become job and machine files, which are run as `run` does.

record ──► Case ──► Outcome ──► rows of topics
a reader    cases     workers     rows
"""
