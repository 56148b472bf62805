"""Questions that take many simulations: plans, sweeps, draws of faults, critical parts, capacities."""
