"""The shape of the package: small modules, no circles, nothing committed that only one machine has."""

import tomllib
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "rapid_des").rglob("*.py"))
LONGER = {"rapid_des/engines/compiled/kernel.py"}
"""One loop that a compiler must see whole."""


def test_no_module_is_longer_than_300_lines():
    lengths = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in MODULES}
    assert {name: length for name, length in lengths.items() if length > 300 and name not in LONGER} == {}


def test_no_modules_import_each_other_in_a_circle():
    grimp = pytest.importorskip("grimp")
    imports = grimp.build_graph("rapid_des", exclude_type_checking_imports=True, cache_dir=None)
    graph = nx.DiGraph((a, b) for a in imports.modules for b in imports.find_modules_directly_imported_by(a))
    assert [sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1] == []


def test_every_package_has_an_init_file():
    folders = {path.parent for path in MODULES}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "LICENSE"])
def test_the_top_level_has_what_readers_look_for(name):
    assert (ROOT / name).is_file()


def test_every_package_stands_in_the_layers_of_the_import_contract():
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    layered = {name for layer in contract["layers"] for name in layer.split(" | ")}
    top = [
        path
        for path in (ROOT / "rapid_des").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    ]
    assert {f"rapid_des.{path.stem}" for path in top} - {"rapid_des.__init__"} == layered
