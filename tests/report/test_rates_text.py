"""What a run says of marks and of the rates that they cut."""

from rapid_des.simulation import replay
from tests.program.machines import machine, switch
from tests.semantics.test_r14_rates import incast, slowing


def notes(switching, senders=2):
    return replay(incast(senders), machine(switch(3), switching=switching), engine="simpy").notes


def test_a_run_says_what_was_marked_and_what_became_of_rates():
    # As the test of R14 has it; all 40 parts but the last leave something behind that waits.
    (marked,) = notes(slowing())
    assert marked.startswith(
        "dcqcn: 39 parts marked on 1 links, most (39) on switch0>gpu0; 2 cuts of 2 rates,"
    )
    assert marked.endswith(
        "the least to 50.00% of its first link; parts start 1.216 us later in all, those "
        "from gpu1 to gpu0 640 ns"
    )


def test_a_run_says_that_nothing_was_marked():
    assert notes(slowing(), senders=1)[0] == "dcqcn: nothing was marked"


def test_a_run_says_that_parts_are_coarse():
    assert notes(slowing(parts=5))[-1].startswith("dcqcn: parts of up to 256 B exceed kmin, 0 B")
