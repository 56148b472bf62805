"""A packet-level reference for the network: small, slow, and close to what ns-3 does.

It answers one question: when does each message of a dependency graph arrive, if every packet queues at
every port? `rapid_des` predicts the same without packets; the stored answers are in `validation/data`.
"""
