"""Folding saves work and changes nothing: equal to the tick with the whole program."""

import pickle
from collections import Counter
from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from rapid_des.chakra.trace import CollectiveType, one_collective
from rapid_des.engines.compiled.engine import run
from rapid_des.importers.astra_sim import lower as lower_astra
from rapid_des.importers.astra_sim.files import Files, NetworkFile, Setup, SystemFile
from rapid_des.machine import load_machine
from rapid_des.modes.execution import EngineChoice, execute
from rapid_des.modes.symmetry import Budget, fold
from rapid_des.modes.symmetry.choices import LinkRequests
from rapid_des.program.lowering import lower
from rapid_des.program.program import shapes
from rapid_des.program.rounds import Rounds, rounds_template
from rapid_des.values import replace
from tests.engines.agreement import RUN, assert_same
from tests.engines.test_compiled_kernel import python
from tests.modes.symmetric_programs import symmetric_programs
from tests.program.machines import dimension, machine, ring, switch
from tests.program.tracing import NANOSECOND, Nodes, same_everywhere

ALWAYS = Budget(inf, discarded=1)
"""Folds whatever can be folded, also where a link may then have to choose by rank."""

happened: Counter[str] = Counter()


def outcome_of_folding(program):
    """Say what folding made of a program; where it counts, it must be exact."""
    folding = fold(program, ALWAYS)
    if folding is None:
        return "whole"
    watch = None if folding.keeps_order else folding.watched
    records = run(folding.program, watch=watch)
    if records.ties and not folding.keeps_order:
        return "discarded"
    assert_same(folding.unfolded(program, records), RUN["compiled"](program), ties=False)
    return "watched" if watch is not None and RUN["compiled"](folding.program).ties else "folded"


@settings(max_examples=50, deadline=None)
@given(symmetric_programs())
def test_folded_and_whole_programs_are_equal_to_the_tick(program):
    happened[outcome_of_folding(program)] += 1


def test_random_programs_did_fold():
    # the property above is worth nothing if no program folds; about half of them do
    if not happened:
        pytest.skip("runs after the property")
    assert happened["folded"] >= 6, happened
    assert happened["discarded"] + happened["whole"] >= 1, happened


@settings(max_examples=25, deadline=None)
@given(symmetric_programs(crowded=True))
def test_folded_and_whole_programs_are_equal_where_links_choose_by_rank(program):
    outcome_of_folding(program)


def _all_to_all_in_planes():
    """Three tori of nine ranks, one behind the other; in each, messages of all ranks meet on its links."""
    nodes = Nodes()
    nodes.collective(CollectiveType.ALL_TO_ALL, 900, "plane")
    return _side_by_side(nodes, dimension("torus", [3, 3]), 3)


def _side_by_side(nodes, plane, planes):
    traces = same_everywhere(
        nodes,
        9 * planes,
        groups_of=lambda rank: [f"plane{rank // 9}"],
        groups={f"plane{plane}": tuple(range(9 * plane, 9 * plane + 9)) for plane in range(planes)},
    )
    where = machine(plane, ring(planes), collectives={"default": "direct"})
    return lower(traces, where).program


def test_ranks_live_alike_where_links_choose_by_rank_in_the_same_order():
    # who goes first on a link is decided between ranks of one plane, in every plane alike
    program = _all_to_all_in_planes()
    folding = fold(program, Budget(run_s=1))
    assert folding is not None
    assert folding.keeps_order
    records = RUN["compiled"](folding.program)
    assert records.ties > 0
    assert_same(folding.unfolded(program, records), RUN["compiled"](program), ties=False)


@pytest.mark.parametrize(
    ("apart", "visit", "choices"),
    [
        ([3, 3, 1], [7, 8, 9], 1),  # the two that ask link 5 at once have senders of one digit
        ([3, 2, 1], [7, 8, 9], None),  # of two digits: one of them goes round the end first
        ([3, 3, 1], [7, 7, 9], None),  # of one visit, whose transfers may be in another order in images
    ],
)
def test_links_choose_alike_for_all_ranks_of_an_orbit_among_senders_of_one_digit(apart, visit, choices):
    link, moment = np.array([5, 5, 5]), np.array([40, 40, 41])
    asked = LinkRequests(link=link, moment=moment, apart=np.array(apart), visit=np.array(visit))
    assert asked.among_equals(39, 41).choices(reordered=True) == choices
    assert asked.among_equals(40, 41).choices(reordered=True) == 0  # nobody else asked at 41


@pytest.mark.parametrize(
    ("engine", "ranks", "folded"),
    [("simpy", 40, 1), ("compiled", 300, 1), ("simpy", 50, 50), ("compiled", 500, 500)],
)
def test_a_run_is_searched_for_symmetry_if_it_takes_long(engine, ranks, folded):
    # an all-reduce around a ring of n has 2 n (n - 1) transfers, of about 30 us interpreted and 0.5 us
    # compiled: 0.094 s and 0.09 s are little, 0.147 s and 0.25 s are not
    nodes = Nodes()
    nodes.collective(CollectiveType.ALL_REDUCE, 10**6)
    program = lower(same_everywhere(nodes, ranks), machine(ring(ranks))).program
    assert execute(program, EngineChoice(engine)).folded == folded


def test_a_small_run_does_not_import_the_search_for_symmetry():
    code = """
import sys
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.simulation import simulate
result = simulate(load_job("llama2_7b_train"), load_machine("dgx_a100"))
print(result.folded, [name for name in sys.modules if "symmetry" in name])
"""
    assert python(code) == "1.0 []\n"


def test_looking_for_symmetry_is_given_up_when_nothing_is_left_to_spend():
    program = _all_to_all_in_planes()
    assert fold(program, Budget(run_s=1, search=0, least_s=0)) is None
    assert fold(program, Budget(run_s=1)) is not None


def test_what_may_have_to_be_discarded_is_folded_only_if_that_costs_little():
    # a ring of ten that sends to all others: links may choose by rank, so a tenth of the run may be lost
    nodes = Nodes()
    nodes.collective(CollectiveType.ALL_TO_ALL, 500)
    program = lower(same_everywhere(nodes, 10), machine(ring(10), collectives={"default": "direct"})).program
    assert fold(program, Budget(inf, discarded=0.02)) is None
    tenth = fold(program, Budget(inf, discarded=0.1))
    assert tenth is not None
    assert not tenth.keeps_order


def test_after_a_discarded_run_what_keeps_the_order_is_folded():
    # 100 B take 100 ns and arrive 100 ns later: then they ask beside the second exchange's messages, and each
    # link chooses by rank. So ranks of a ring do not live alike, but the two rings do
    nodes = Nodes()
    before: tuple[int, ...] = ()
    for _ in range(12):  # 3,456 messages of about 30 us: searched for a symmetry
        first = nodes.collective(CollectiveType.ALL_TO_ALL, 900, "plane", after=before)
        late = nodes.compute(200 * NANOSECOND, after=before)
        second = nodes.collective(CollectiveType.ALL_TO_ALL, 900, "plane", stream="tp", after=late)
        before = (first, second)
    program = _side_by_side(nodes, ring(9), 2)
    folding = fold(program, Budget(inf))
    assert folding is not None
    assert not folding.keeps_order
    assert RUN["compiled"](folding.program).ties
    done = execute(program, EngineChoice("simpy"))
    assert done.folded == 2
    assert_same(done.records, RUN["compiled"](program), ties=False)


def test_members_of_a_node_live_alike_whose_messages_a_library_starts_one_by_one():
    # a member of another place sends to the other node earlier or later, over links of its own
    traces = one_collective(tuple(range(16)), CollectiveType.ALL_TO_ALL, 2**26, stream="ep")
    program = lower(traces, load_machine("dgx_h100_x8")).program
    folding = fold(program, ALWAYS)
    assert folding is not None
    assert folding.factor == 8
    records = RUN["compiled"](folding.program)
    assert not records.ties
    assert_same(folding.unfolded(program, records), RUN["compiled"](program), ties=False)


def test_members_that_start_messages_over_one_link_at_once_in_another_order_live_differently():
    # member 0 sends to 1 before 5, the next node's member there; member 3 to 4, of the next node, before 0
    nodes = Nodes()
    nodes.collective(CollectiveType.ALL_TO_ALL, 800)
    where = machine(dimension("fully_connected", 4), switch(2), collectives={"default": "direct"})
    folding = fold(lower(same_everywhere(nodes, 8), where).program, ALWAYS)
    assert folding is not None
    assert folding.factor == 2  # the nodes


def test_messages_whose_routes_join_again_do_not_count_as_in_order():
    # each message has a first link of its own, then all of a member ask its one middle link at one instant,
    # in an order that is not that of its image's; no link carries messages of two members
    nodes = Nodes()
    nodes.collective(CollectiveType.ALL_TO_ALL, 600)
    inner, outer = dimension("fully_connected", 3), dimension("fully_connected", 2, latency="150 ns")
    where = machine(inner, outer, order="outermost_first", collectives={"default": "direct"})
    program = lower(same_everywhere(nodes, 6), where).program
    (template,) = program.templates
    source, destination = template.pair_source, template.pair_destination
    last = np.where(source // 3 == destination // 3, 0, 1)
    of_pairs = np.stack((6 * source + destination, 36 + source, 42 + 6 * source + destination), 1)
    program = replace(
        program,
        links=78,
        route_starts=np.arange(0, 3 * len(source) + 1, 3),
        route_links=of_pairs.reshape(-1).astype(np.int32),
        route_class=np.stack((0 * last, 0 * last, last), 1).reshape(-1).astype(np.int32),
    )
    whole = RUN["compiled"](program)
    assert len(set(whole.finish.tolist())) == 2
    folding = fold(program, Budget(inf, discarded=0))
    assert folding is not None
    assert folding.factor == 2  # a shift by three takes members with all their messages to others
    assert_same(folding.unfolded(program, RUN["compiled"](folding.program)), whole, ties=False)
    folding = fold(program, ALWAYS)
    assert folding is not None
    assert not folding.keeps_order
    assert RUN["compiled"](folding.program).ties


def test_ranks_apart_above_the_shift_keep_their_order():
    # the link into GPU 0 carries rank 1 (its pair) and rank 2 (its like in the other pair): two digits of
    # the shift inside pairs, but in different pairs, which order them whatever the shift does
    nodes = Nodes()
    nodes.collective(CollectiveType.ALL_REDUCE, 500, group="pair", stream="tp")
    nodes.collective(CollectiveType.ALL_REDUCE, 500, group="across", stream="dp")
    groups = {"pair0": (0, 1), "pair1": (2, 3), "across0": (0, 2), "across1": (1, 3)}

    def groups_of(rank):
        return f"pair{rank // 2}", f"across{rank % 2}"

    program = lower(same_everywhere(nodes, 4, groups_of, groups=groups), machine(switch(4))).program
    folding = fold(program, Budget(inf, discarded=0.0))
    assert folding is not None
    assert folding.keeps_order
    assert folding.factor == 2


def test_templates_of_rounds_travel_and_have_the_columns_that_engines_want():
    rounds = Rounds(
        partner=np.array([[1, 2, 0]], np.int32),
        pair=np.array([[0, 1, 2]], np.int32),
        size=np.zeros(4, np.int32),
        lag=np.arange(5, dtype=np.int64),
    )
    template = rounds_template(rounds, np.arange(3, dtype=np.int32), np.array([1, 2, 0], np.int32), "ring")
    columns = pickle.loads(pickle.dumps(template)).expanded()
    # each of three members sends in each of four rounds; all but the last round lead to two tasks each
    assert len(template) == len(columns) == 12
    assert columns.edge_target[:2].tolist() == [3 + 1, 3 + 0]


@pytest.mark.parametrize("kind", [CollectiveType.ALL_TO_ALL, CollectiveType.ALL_REDUCE])
def test_of_members_that_send_to_all_others_at_once_one_is_left(kind):
    nodes = Nodes()
    nodes.collective(kind, 6400, stream="network")
    traces = same_everywhere(nodes, 16)
    network = NetworkFile(topology=("Switch",), npus_count=(16,), bandwidth=(50.0,), latency=(500.0,))
    system = SystemFile(
        scheduling_policy="LIFO",
        collective_optimization="localBWAware",
        preferred_dataset_splits=1,
        local_mem_bw=1600,
        all_reduce_implementation=("direct",),
        all_gather_implementation=("direct",),
        reduce_scatter_implementation=("direct",),
        all_to_all_implementation=("direct",),
    )
    files = Files(Path("network"), Path("system"))
    program = lower_astra(traces, Setup(files, network, system, {}, None, ())).program
    folding = fold(program, ALWAYS)
    assert folding is not None
    (template,) = (one for one in folding.program.templates if one.members == 1 and len(one))
    # 15 messages; an all-reduce has 15 more, and three joins between its halves
    assert len(template.expanded()) == (15 if kind is CollectiveType.ALL_TO_ALL else 33)
    assert_same(
        folding.unfolded(program, RUN["simpy"](folding.program)), RUN["compiled"](program), ties=False
    )


def test_templates_of_one_shape_are_told_by_value():
    # two sizes of one collective share all columns but sizes, also where the values come from a file
    nodes = Nodes()
    nodes.collective(CollectiveType.ALL_REDUCE, 500)
    nodes.collective(CollectiveType.ALL_REDUCE, 600)
    nodes.collective(CollectiveType.ALL_TO_ALL, 500)
    program = lower(same_everywhere(nodes, 4), machine(ring(4), collectives={"all_to_all": "direct"})).program
    travelled = pickle.loads(pickle.dumps(program))
    first, second, other = shapes(program.templates)
    assert first == second != other
    assert shapes(travelled.templates) == [first, second, other]
