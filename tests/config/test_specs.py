"""Trees to frozen specs, overrides, and finding files: what is accepted, and how a refusal reads."""

import os
import re
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from rapid_des.config import (
    Document,
    Spec,
    apply_overrides,
    decode,
    json_schema,
    load_document,
    preset_names,
    resolve,
)
from rapid_des.config.documents import read_text
from rapid_des.config.specs import KINDS
from rapid_des.config.texts import parse_text
from rapid_des.errors import ConfigError
from rapid_des.units import Bandwidth, Size


class Cable(Spec, frozen=True, kw_only=True, tag_field="kind", tag="cable"):
    bandwidth: Bandwidth
    colour: Literal["red", "green"] = "red"


class Radio(Spec, frozen=True, kw_only=True, tag_field="kind", tag="radio"):
    channel: int


class Plant(Spec, frozen=True, kw_only=True):
    name: str
    links: tuple[Cable | Radio, ...] = ()
    stores: dict[str, Size] = {}


GOOD: dict[str, Any] = {
    "name": "x",
    "links": [{"kind": "cable", "bandwidth": "1 GB/s"}, {"kind": "radio", "channel": 3}],
    "stores": {"a": "1 KiB"},
}


def plant(tree):
    return decode(Document(Path("p.yaml"), tree), Plant)


def test_a_tree_becomes_a_frozen_spec_with_integers_for_quantities():
    made = plant(GOOD)
    assert made.links[0].bandwidth == 10**9
    assert made.stores["a"] == 1024
    with pytest.raises(AttributeError):
        made.name = "y"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nmae": "y"}, "p.yaml: unknown key 'nmae'; did you mean 'name'? allowed: name, links, stores"),
        (
            {"links": [{"kind": "radio", "channel": 3, "colour": "red"}]},
            "p.yaml: links[0]: unknown key 'colour'; allowed: kind, channel",
        ),
        ({"name": 3}, "p.yaml: name: 3 is not text"),
        ({"links": [{"kind": "cable"}]}, "p.yaml: links[0]: missing key 'bandwidth'"),
        ({"links": [{"kind": "cabel"}]}, "p.yaml: links[0].kind: 'cabel' is not one of cable, radio"),
        (
            {"links": [{"kind": "cable", "bandwidth": "1 GB/s", "colour": "rad"}]},
            "p.yaml: links[0].colour: 'rad' is not one of green, red (did you mean 'red'?)",
        ),
        (
            {"links": [{"kind": "cable", "bandwidth": 3}]},
            "p.yaml: links[0].bandwidth: 3 is not a quantity such as '450 GB/s'",
        ),
        ({"stores": {"a": "1 us"}}, "p.yaml: stores.a: '1 us' has unit 'us'; allowed: B, kB"),
    ],
)
def test_a_refusal_names_file_place_value_and_what_is_allowed(change, said):
    with pytest.raises(ConfigError) as refusal:
        plant(GOOD | change)
    assert str(refusal.value).startswith(said)
    assert "\n" not in str(refusal.value)


def test_a_schema_describes_quantities_by_their_units():
    schema = msgspec.json.encode(json_schema(Plant)).decode()
    assert "a number and one of: B/s" in schema
    assert '"additionalProperties":false' in schema


@pytest.mark.parametrize(
    ("key", "text", "place", "value"),
    [
        ("name", "y", ("name",), "y"),
        ("stores.b", "2 KiB", ("stores", "b"), "2 KiB"),
        ("stores.a", "0.5x", ("stores", "a"), "0.5 KiB"),
        ("links.1.channel", "2x", ("links", 1, "channel"), 6),
        ("links.0.bandwidth", "0.73x", ("links", 0, "bandwidth"), "0.73 GB/s"),
        ("new.deep.key", "[1, 2]", ("new", "deep", "key"), [1, 2]),
    ],
)
def test_an_override_sets_or_multiplies_one_place_of_a_copy(key, text, place, value):
    document = Document(Path("p.yaml"), GOOD)
    tree = apply_overrides(document, [(key, text)]).tree
    for step in place:
        tree = tree[step]
    assert tree == value
    assert document.tree is GOOD
    assert GOOD["links"][0]["bandwidth"] == "1 GB/s"


def test_the_last_of_several_overrides_wins():
    document = Document(Path("p.yaml"), GOOD)
    assert apply_overrides(document, [("name", "a"), ("name", "b")]).tree["name"] == "b"


@pytest.mark.parametrize("kind", KINDS)
def test_presets_are_found_by_name_with_or_without_suffix_and_folder(kind, tmp_path):
    for name in preset_names(kind):
        path = resolve(name, kind, folder=tmp_path)
        assert path == resolve(f"{name}.yaml", kind, folder=tmp_path)
        assert path == resolve(f"elsewhere/{name}.yaml", kind, folder=tmp_path)
        assert load_document(path).tree


def test_a_file_beside_the_referring_one_wins_over_a_preset(tmp_path):
    name = preset_names("machine")[0]
    (tmp_path / f"{name}.yaml").write_text("name: mine\n")
    assert resolve(name, "machine", folder=tmp_path) == tmp_path / f"{name}.yaml"


def test_an_unknown_reference_names_file_key_and_the_nearest_preset(tmp_path):
    with pytest.raises(ConfigError) as refusal:
        resolve("dgx_a1000", "machine", folder=tmp_path, named_in="s.yaml", key="machine")
    assert str(refusal.value).startswith("s.yaml: machine: no machine file 'dgx_a1000' here")
    assert "did you mean 'dgx_a100'?" in str(refusal.value)


def test_the_beginning_of_presets_is_answered_with_them(tmp_path):
    with pytest.raises(ConfigError, match=r"did you mean 'dgx_h200'\?"):
        resolve("h200_x8", "machine", folder=Path())
    with pytest.raises(ConfigError, match=r"did you mean .*'h100_nvl' or 'h100_pcie' or 'h100_sxm'"):
        resolve("h100", "device", folder=tmp_path)


def test_json_is_yaml_too(tmp_path):
    (tmp_path / "x.json").write_text('{"name": "x", "links": []}')
    assert load_document(tmp_path / "x.json").tree == {"name": "x", "links": []}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 30_000, "more than 64 levels"),
        ("a: " + "{a: " * 30_000, "more than 64 levels"),
        ("a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
            f"{after}: &{after} [{','.join([f'*{before}'] * 10)}]\n"
            for before, after in zip("abcdefgh", "bcdefghi", strict=True)
        ), "more than 1,000,000 values"),
        ("!!timestamp x", "tags are not used"),
        ("0100", "'0100' is no finite decimal number"),
        (".nan", "'.nan' is no finite decimal number"),
        ("1e400", "'1e400' is too large"),
        ("9" * 5_000, "is no finite decimal number"),
        ("--- 1\n--- 2", "one document is expected"),
        ("[a]: 1", "is not text"),
    ],
)  # fmt: skip
def test_yaml_that_would_crash_or_mislead_is_refused(text, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        parse_text(text, Path("f.yaml"))


def test_plain_values_are_those_of_yaml_1_2():
    assert parse_text("[1:30, no, 1_000, ~, true, -1.5, 1e3, '5']", Path("f")) == [
        "1:30", "no", "1_000", None, True, -1.5, 1000.0, "5",
    ]  # fmt: skip


def test_only_regular_files_of_a_sensible_size_are_read(tmp_path):
    with (tmp_path / "large").open("wb") as file:
        file.truncate((64 << 20) + 1)
    os.mkfifo(tmp_path / "fifo")
    for name, said in {
        "large": "larger than 64 MiB", "fifo": "no regular file", ".": "no regular file", "a\0b": "null byte",
    }.items():  # fmt: skip
        with pytest.raises(ConfigError, match=said):
            read_text(tmp_path / name)
