"""Faults in replay: slow GPUs, and links and GPUs that change while the program runs."""
