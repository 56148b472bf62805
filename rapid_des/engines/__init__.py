"""What runs a program: `simpy`, the definition, and `compiled`, the same rules as one loop."""
