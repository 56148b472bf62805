"""Links that nodes stop: the stored answers are the oracle's, and parts come near to packets."""

from validation.measurements import CHECKOUT_DATA, DataFolder
from validation.network.pauses import pause_cases, pause_topics
from validation.packet_oracle.regenerate import pause_answer


def test_the_stored_answers_come_from_this_oracle():
    stored = DataFolder(CHECKOUT_DATA, split=False).read("packet_oracle/pauses.csv")
    cases = list(pause_cases())
    assert len(stored) == len(cases)
    for number in (0, 9, 25):
        assert {key: str(value) for key, value in pause_answer(cases[number]).items()} == stored[number]


def test_pauses_that_are_stated_make_the_difference_and_small_parts_the_rest():
    data = DataFolder(CHECKOUT_DATA, split=False)
    errors = {}
    for topic in pause_topics(data):
        rows = [
            row for row in topic.rows() if row.case_id.split("/")[1:3] != ["11", "4194304"]
        ]  # the longest
        errors[topic.name.rpartition("/")[2]] = [abs(row.predicted / row.measured - 1) for row in rows]
    mean = {name: 100 * sum(each) / len(each) for name, each in errors.items()}
    assert mean["fine"] < 2 < mean["stated"] < 6
    assert mean["unstated"] > 30
    assert max(errors["fine"]) < 0.07
