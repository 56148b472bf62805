"""The page at the head of `program.collectives` uses names that exist."""

import importlib
import inspect
import pkgutil
import re

import pytest

import rapid_des.program.collectives as package

PAGE = package.__doc__
MODULES = [
    importlib.import_module(f"{package.__name__}.{module.name}")
    for module in pkgutil.iter_modules(package.__path__)
]
NAMES = sorted(
    set(re.findall(r"^ {4}(?:[ │├└─]+)?([A-Z][a-z]\w+)[: ]", PAGE, re.MULTILINE))
    | set(re.findall(r"\b([A-Z][a-z]\w*\.\w+)", PAGE))
)


def test_every_module_is_on_the_page():
    last_words = {line.split()[-1] for line in PAGE.splitlines() if "  " in line.strip()}
    assert {module.__name__.rpartition(".")[2] for module in MODULES} <= last_words


def test_names_are_found():
    assert {"AxisPhase.schedule", "Communication.message", "Libraries.lay_out"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there(name):
    name, _, attribute = name.partition(".")
    (thing,) = {vars(module)[name] for module in MODULES if name in vars(module)}
    assert not attribute or re.search(rf"(def |self\.){attribute}\b", inspect.getsource(thing))
