"""The picture of a collective's way in `rapid_des.program` says today's names."""

import importlib
import inspect
import re

import pytest

import rapid_des.program

PICTURE = rapid_des.program.__doc__
MODULES = [
    importlib.import_module(f"rapid_des.{name}")
    for name in sorted(set(re.findall(r"\b(?:chakra|network|program)\.\w+", PICTURE)))
] + [importlib.import_module("rapid_des.program.algorithm_selection")]
NAMES = sorted(
    set(re.findall(r"\b(?:analytic|choosing|groups|plans|routes|templates)\.(\w+)", PICTURE))
    | set(re.findall(r"^ {4}(?:[ │]+)?([A-Z]\w+) ", PICTURE, re.MULTILINE))
    | set(re.findall(r"\b([A-Z][a-z]\w*\.\w+)", PICTURE))
)


def test_names_are_found():
    assert {"Call", "LaidOut", "Template", "geometry", "Communication.plan"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there(name):
    name, _, attribute = name.partition(".")
    (thing,) = {vars(module)[name] for module in MODULES if name in vars(module)}
    assert not attribute or re.search(rf"(def |self\.){attribute}\b", inspect.getsource(thing))
