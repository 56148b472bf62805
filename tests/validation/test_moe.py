from hypothesis import given
from hypothesis import strategies as st

from validation.operators.moe import balanced, hottest_rank, power_law


@given(st.integers(1, 3000), st.integers(1, 8), st.sampled_from([8, 64, 256]))
def test_every_token_goes_to_its_experts_and_to_none_twice(tokens, topk, experts):
    rows = power_law(tokens, topk, experts, 1.2)
    assert sum(rows) == tokens * topk
    assert max(rows) <= tokens
    assert len(rows) == experts


@given(st.integers(0, 3000), st.integers(1, 300))
def test_balanced_experts_differ_by_one_at_most(pairs, experts):
    rows = balanced(pairs, experts)
    assert sum(rows) == pairs
    assert max(rows) - min(rows) <= 1


def test_the_hottest_rank_holds_the_most_popular_expert():
    rows = power_law(512, 8, 64, 1.2)
    assert hottest_rank(rows, 8)[0] == max(rows)
    assert len(hottest_rank(rows, 8)) == 8
