"""What tests of several rules send: messages at 1 GB/s, so 1000 ps a byte, and 100 ns of latency a hop."""

from __future__ import annotations

from tests.program.tracing import Nodes, trace_set

LATENCY = 100_000
CUT = {"mode": "cut_through", "segment": "64 B"}
PARTS = CUT | {"parts": 4}


def hop(size):
    """A message of so many bytes over an idle link, stored and forwarded."""
    return size * 1000 + LATENCY


def one_message(size, *, peer, ranks):
    """Rank 0 sends to rank `peer`, which asks at once."""
    programs = [Nodes() for _ in range(ranks)]
    programs[0].send(peer, size)
    programs[peer].recv(0, size)
    return trace_set(programs)


def two_senders(first, second, *, streams=("a", "b"), priorities=(0, 0), delays=(0, 0)):
    """Rank 0 sends two messages to rank 1 on streams of their own."""
    sender, receiver = Nodes(), Nodes()
    for size, tag, stream in zip((first, second), (0, 1), streams, strict=True):
        gate = sender.compute(delays[tag], stream=f"gate{tag}") if delays[tag] else ()
        sender.send(1, size, tag=tag, stream=stream, after=gate, priority=priorities[tag])
        receiver.recv(0, size, tag=tag, stream=stream)
    return trace_set([sender, receiver])


def merging():
    """Rank 0's message to rank 2 stands at node 1 of a ring of 5 at 300 ns, when rank 1 sends its own."""
    programs = [Nodes() for _ in range(5)]
    programs[0].send(2, 200)
    programs[1].send(2, 200, after=programs[1].compute(200_000 + LATENCY))
    programs[2].recv(1, 200, stream="from1")
    programs[2].recv(0, 200, stream="from0")
    return trace_set(programs)
