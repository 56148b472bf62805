"""Every field of every file format says what it means, in schemas and to who asks for one key."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from rapid_des.cli.schema import SCHEMAS
from rapid_des.config.descriptions import (
    described,
    described_schema,
    explain,
    keys_below,
    meanings_of,
    structs,
)
from rapid_des.config.texts import parse_text
from rapid_des.errors import ConfigError
from rapid_des.machine import MachineSpec
from tests.cli.shell import call, refused

STRUCTS = {struct.cls: struct for spec in SCHEMAS.values() for struct in structs(inspect.type_info(spec))}


@pytest.mark.parametrize("struct", STRUCTS.values(), ids=lambda struct: struct.cls.__name__)
def test_every_field_has_a_meaning(struct):
    meanings = meanings_of(struct.cls)
    assert [field.name for field in struct.fields if not meanings.get(field.name, "").endswith(".")] == []


@pytest.mark.parametrize("kind", SCHEMAS)
def test_every_property_of_a_schema_is_described(kind):
    for name, definition in described_schema(SCHEMAS[kind])["$defs"].items():
        bare = [key for key, value in definition["properties"].items() if not value.get("description")]
        assert not bare, name


def test_a_key_is_explained_once_for_each_struct_that_says_it_differently():
    (field,) = explain(MachineSpec, "fabric.spans_inner")
    assert field.allowed == "true or false"
    assert field.default == "false"
    assert field.meaning.startswith("Whether one block joins all coordinates")
    assert len(explain(MachineSpec, "fabric.0.size")) > 3


def test_an_unknown_key_names_those_that_there_are():
    with pytest.raises(
        ConfigError,
        match=r"no key 'routing\.ordr'; keys of routing: ecmp, non_minimal, order, tie, waypoints",
    ):
        explain(MachineSpec, "routing.ordr")


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        ("rooting.order", "no key 'rooting'; keys of the top level: "),
        ("name.first", "no key 'name.first'; nothing stands below name"),
    ],
)
def test_the_first_step_that_is_no_key_is_named(key, answer):
    with pytest.raises(ConfigError, match=answer):
        explain(MachineSpec, key)


def test_what_tells_structs_apart_is_a_key_too():
    rows = explain(MachineSpec, "collectives.libraries.tp.library")
    assert [row.allowed for row in rows] == [
        "native",
        "nccl",
        "custom_all_reduce",
        "deepep",
        "hybridep",
        "samples",
    ]
    assert rows[1].meaning.startswith("nccl: NCCL: rings") and rows[1].default == ""
    (whole,) = explain(MachineSpec, "collectives.libraries.tp")
    assert whole.allowed.startswith(
        "a mapping with library: native, or a mapping with library: nccl and keys"
    )
    assert "library" in keys_below(MachineSpec, "collectives.libraries.tp")
    with pytest.raises(ConfigError, match=r"keys of collectives.libraries.tp: .*, library,"):
        explain(MachineSpec, "collectives.libraries.tp.libraries")


def test_explain_finds_a_key_in_every_kind_of_file():
    assert list(call("explain", "clock.sustained", "--json").json) == ["device"]
    assert "hours of matrix work" in call("explain", "device.clock.sustained").out
    assert "no file kind has the key 'nothing.here'" in refused(call("explain", "nothing.here"))
    assert "try machine.routing.order, job.parallelism.order" in refused(call("explain", "order"))


def test_a_preset_is_printed_and_traces_are_listed():
    assert "name: DGX A100" in call("presets", "show", "dgx_a100").out
    assert call("presets", "trace", "--json").json == {"trace": ["all_reduce_4", "two_stages"]}
    assert "did you mean one of: dgx_a100" in refused(call("presets", "show", "dgx_a1000"))


@pytest.mark.parametrize("struct", STRUCTS.values(), ids=lambda struct: struct.cls.__name__)
def test_every_key_has_an_example_that_a_file_may_state(struct):
    types = {field.encode_name: field.type for field in msgspec.structs.fields(struct.cls)}
    for field, _ in described(struct):
        tree: Any = parse_text(field.example, Path("example.yaml"))
        value = tree[field.name]
        if field.name in types:
            msgspec.convert(value, types[field.name], dec_hook=lambda target, text: target.parse(text))
