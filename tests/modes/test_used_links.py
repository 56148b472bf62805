"""Links that no route takes cost nothing and change nothing."""

import numpy as np
from hypothesis import given, settings

from rapid_des.engines import compiled
from rapid_des.modes.used_links import UsedLinks
from rapid_des.values import replace
from tests.engines.agreement import assert_same
from tests.engines.random_programs import programs


@settings(max_examples=10, deadline=None)
@given(programs(priorities=True))
def test_a_program_on_the_links_that_it_uses_is_recorded_as_on_all(program):
    program = replace(program, queue_pairs=None, spray=None)  # tables that name links
    links = 7 * program.links + 4 * len(program.route_links) + 7
    among_others = replace(program, links=links, route_links=7 * program.route_links + np.int32(3))
    used = UsedLinks.of(among_others)
    assert used.program.links <= program.links
    records = used.whole(compiled.run(used.program, trail=True))
    assert_same(compiled.run(among_others, trail=True), records)


@settings(max_examples=5, deadline=None)
@given(programs(timetables=True))
def test_a_program_whose_tables_name_links_keeps_all(program):
    whole = replace(program, links=5 * len(program.route_links) + program.links + 1)
    is_named = bool(program.link_timetables or program.queue_pairs or program.spray)
    assert (UsedLinks.of(whole) is None) == is_named
