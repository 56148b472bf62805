"""A training run of weeks: failures, checkpoints, restarts and spares around simulated steps.

    job, machine ──► simulation ──► step time ┐
    reliability file ──► spec ──► failures ───┴─► clock (SimPy) ──► replications ──► result

Times are picoseconds, as Python's integers: a year is more than 64 bits hold. The work between two events is
arithmetic on whole steps, so that a replication's cost grows with its incidents.
"""
