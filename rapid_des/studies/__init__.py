"""Many simulations: faults, how critical each part is, collectives over their sizes, and our own speed."""
