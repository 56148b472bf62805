"""A server under load: requests come, replicas batch them iteration by iteration, tokens go out.

    workload ──► router ──► replicas (SimPy processes) ──► records ──► result
    arrivals,     which     policy ──► batch ──► iteration     a row a     percentiles, goodput,
    lengths      replica?   pages of the KV cache    │         request     queue and batch over time
                                                   costs
                                    kernels and simulated communication of static runs

One clock of integer picoseconds. `costs` prices an iteration as a static run of the same batch does;
`policies` are functions named after the engines whose documented behaviour they follow.
"""
