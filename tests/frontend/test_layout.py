"""Ranks by mixed radix, innermost axis first."""

from rapid_des.frontend.layout import Layout

#   pp 0            pp 1
#   dp 0   dp 1     dp 0   dp 1
#   0 1    2 3      4 5    6 7     tp innermost
LAYOUT = Layout(("tp", "cp", "ep", "dp", "pp"), (2, 1, 1, 2, 2))


def test_groups_differ_only_along_their_axis():
    assert LAYOUT.groups(("tp",)) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert LAYOUT.groups(("dp", "cp")) == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert LAYOUT.groups(("tp", "pp")) == ((0, 1, 4, 5), (2, 3, 6, 7))
    assert LAYOUT.groups(("tp", "dp", "pp")) == (tuple(range(8)),)


def test_the_order_decides_who_is_a_neighbour():
    outer_tp = Layout(("dp", "pp", "tp"), (2, 2, 2))
    assert outer_tp.groups(("tp",)) == ((0, 4), (1, 5), (2, 6), (3, 7))


def test_coordinates_and_groups_of_a_rank():
    assert LAYOUT.coordinates("pp").tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert LAYOUT.coordinates("dp").tolist() == [0, 0, 1, 1, 0, 0, 1, 1]


def test_every_rank_is_in_the_group_of_its_number():
    for axes in (("tp",), ("dp", "cp"), ("tp", "pp"), ("tp", "dp", "pp")):
        groups, numbers = LAYOUT.groups(axes), LAYOUT.group_numbers(axes).tolist()
        assert all(rank in groups[numbers[rank]] for rank in range(LAYOUT.ranks))
