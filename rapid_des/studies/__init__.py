"""Many simulations: fault studies."""
