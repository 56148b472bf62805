"""How long the communication libraries of GPUs take: NCCL, and the kernels of serving engines."""
