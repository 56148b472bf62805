"""What engines run: the program, its rules, and the lowering of traces to it."""
