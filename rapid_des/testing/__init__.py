"""Checks that parts of other distributions must pass, to be called from their own tests.

    check_collective("my_ring")                          an algorithm: everyone ends with exactly their data
    check_operators("my_model:times.csv")                an operator model
    check_layer({"kind": "extension", "name": "mine"})   a layer kind
    check_policy("my_scheduler")                         a serving policy
    check_importer("my_tool", config)                    an importer: each key has an effect, or is named

Each takes what a file or a command states, so that the entry point is checked too, and raises an
`AssertionError` or an `InputError` that says what is wrong. The parts of this distribution pass them.
"""

from rapid_des.testing.collectives import check_collective as check_collective
from rapid_des.testing.collectives import check_schedule as check_schedule
from rapid_des.testing.importers import check_importer as check_importer
from rapid_des.testing.layers import check_layer as check_layer
from rapid_des.testing.operators import check_operators as check_operators
from rapid_des.testing.policies import check_policy as check_policy
