"""Engines that run a program: `simpy` defines the rules, `compiled` runs the same rules as one loop."""
