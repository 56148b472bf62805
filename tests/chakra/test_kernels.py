"""The byte loops: compiled and plain forms agree, and agree with protobuf."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapid_des.chakra import kernels
from rapid_des.chakra.columns import integers
from rapid_des.chakra.dependencies import Edges, one_cycle, topological_order
from rapid_des.chakra.files import varint
from rapid_des.chakra.wire import (
    MalformedMessageError,
    Spans,
    distinct_spans,
    entire,
    message_class,
    split_fields,
    unpack_varints,
)
from tests.chakra.kernel_samples import SAMPLES, arguments
from tests.chakra.writing import COLLECTIVE, delimited, metadata, node, one_rank

EXTREMES = [0, 1, 127, 128, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]


@pytest.mark.parametrize("number", EXTREMES)
def test_a_varint_keeps_all_64_bits(number):
    values, counts = unpack_varints(varint(number), entire(varint(number)))
    assert values.view(np.uint64).tolist() == [number]
    assert counts.tolist() == [1]


@pytest.mark.parametrize("number", EXTREMES)
def test_fixed_numbers_keep_all_64_bits(number):
    message = message_class("AttributeProto")(fixed64_val=number).SerializeToString()
    fields = split_fields(message, entire(message))
    assert fields.value.view(np.uint64).tolist() == [number]


KINDS = {
    "int32_val": st.integers(-(2**31), 2**31 - 1),
    "int64_val": st.integers(-(2**63), 2**63 - 1),
    "uint32_val": st.integers(0, 2**32 - 1),
    "uint64_val": st.integers(0, 2**63 - 1),
    "sint32_val": st.integers(-(2**31), 2**31 - 1),
    "sint64_val": st.integers(-(2**63), 2**63 - 1),
    "fixed32_val": st.integers(0, 2**32 - 1),
    "fixed64_val": st.integers(0, 2**63 - 1),
    "sfixed32_val": st.integers(-(2**31), 2**31 - 1),
    "sfixed64_val": st.integers(-(2**63), 2**63 - 1),
    "bool_val": st.booleans(),
    "double_val": st.integers(-(2**53), 2**53),
    "float_val": st.integers(-(2**24), 2**24),
}


@given(pair=st.sampled_from(list(KINDS)).flatmap(lambda kind: st.tuples(st.just(kind), KINDS[kind])))
def test_every_numeric_attribute_decodes_as_protobuf_says(pair):
    kind, value = pair
    message = message_class("AttributeProto")(**{kind: value}).SerializeToString()
    fields = split_fields(message, entire(message))
    decoded, broken = integers(fields.number, fields.value)
    assert (decoded.tolist(), broken.tolist()) == ([int(value)], [])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300, 0.5])
def test_reals_that_are_no_whole_numbers_are_reported(value):
    message = message_class("AttributeProto")(double_val=value).SerializeToString()
    fields = split_fields(message, entire(message))
    assert integers(fields.number, fields.value)[1].tolist() == [0]


@pytest.mark.parametrize(
    "message",
    [
        b"\x08",
        b"\x08\x80",
        b"\x08" + b"\xff" * 10 + b"\x01",
        b"\x12\x05ab",
        b"\x0b",
        b"\x00\x01",
        b"\x09\x01",
        b"\x0d",
    ],
    ids=[
        "no value",
        "cut varint",
        "long varint",
        "cut bytes",
        "group",
        "field 0",
        "cut 64 bits",
        "cut 32 bits",
    ],
)
def test_bytes_that_are_no_message_are_refused(message):
    with pytest.raises(MalformedMessageError):
        split_fields(message, entire(message))


def test_compiled_and_plain_loops_read_a_file_alike(tmp_path, monkeypatch):
    from rapid_des.chakra import read_set

    nodes = [node(i, f"n{i % 7}", needs=range(max(0, i - 3), i), us=i, num_ops=2**40 + i) for i in range(300)]
    nodes.append(
        node(300, type=COLLECTIVE, needs=[299, 0], comm_type=1, comm_size=(-1 % 2**31, "sfixed32_val"))
    )
    one_rank(tmp_path, *nodes)
    plain = read_set(tmp_path).ranks[0].nodes
    monkeypatch.setattr(kernels, "LOAD_AFTER", -1)
    monkeypatch.setattr(kernels, "COMPILE_ABOVE", -1)
    compiled = read_set(tmp_path).ranks[0].nodes
    for name in ("ids", "kind", "name", "duration", "size", "flops", "dependency_starts", "dependencies"):
        assert getattr(plain, name).tolist() == getattr(compiled, name).tolist()
    assert plain.names == compiled.names


def numbers(arguments):
    """Yield the arrays in arguments as lists, after the buffer."""
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from numbers(argument)
        elif isinstance(argument, np.ndarray):
            yield argument.tolist()


@pytest.mark.parametrize("loop", SAMPLES, ids=lambda loop: loop.__name__)
def test_machine_code_does_what_plain_python_does(loop):
    if kernels.KERNELS[loop].is_interpreted:
        pytest.skip("there is no machine code here")
    for sample in range(200):
        plain, given = (list(arguments(loop, sample)) for _ in range(2))
        kernels.KERNELS[loop](*given)
        if plain[0].dtype == np.uint8:
            plain[0] = plain[0].tobytes()  # as Python's integers, which do not overflow
        loop(*plain)
        assert list(numbers(plain[1:])) == list(numbers(given[1:])), sample


@given(texts=st.lists(st.binary(max_size=4), max_size=30))
def test_equal_strings_share_a_number_in_order_of_first_appearance(texts):
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    spans = Spans(ends - np.array([len(text) for text in texts], np.int64), ends)
    codes, distinct = distinct_spans(b"".join(texts), spans)
    assert distinct == list(dict.fromkeys(texts))
    assert [distinct[code] for code in codes] == texts


def edges(pairs):
    pairs = sorted(pairs)
    return Edges(*(np.array([pair[side] for pair in pairs], np.int64) for side in (0, 1)))


@settings(max_examples=60)
@given(pairs=st.sets(st.tuples(st.integers(0, 8), st.integers(0, 8)).filter(lambda pair: pair[0] != pair[1])))
def test_an_order_respects_all_edges_or_a_real_cycle_is_named(pairs):
    graph = edges(pairs)
    cycle = one_cycle(graph, 9)
    if cycle:
        assert all((here, there) in pairs for here, there in zip(cycle, [*cycle[1:], cycle[0]], strict=True))
        assert cycle[0] == min(cycle)
    else:
        place = {position: index for index, position in enumerate(topological_order(graph, 9).tolist())}
        assert len(place) == 9
        assert all(place[needed] < place[position] for position, needed in pairs)


def test_of_those_ready_the_smallest_comes_first():
    # 0 needs 3; ready at the start are 1, 2, 3, and 0 becomes ready behind 3: the order is 1, 2, 3, 0.
    assert topological_order(edges({(0, 3)}), 4).tolist() == [1, 2, 3, 0]


def test_frames_are_found_over_the_edge_of_what_is_read_at_once(tmp_path, monkeypatch):
    from rapid_des.chakra import files, read_set

    (tmp_path / "job.0.et").write_bytes(delimited(metadata(), *(node(i, "x" * i, us=1) for i in range(60))))
    monkeypatch.setattr(files, "CHUNK", 37)
    assert read_set(tmp_path).ranks[0].nodes.ids.tolist() == list(range(60))
