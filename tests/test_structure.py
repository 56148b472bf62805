"""The shape of the package: small modules, no circles, nothing committed that only one machine has."""

import ast
import inspect
import sys
import tomllib
from collections import Counter
from pathlib import Path

import networkx as nx
import pytest

from rapid_des.cli.main import cli

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "rapid_des").rglob("*.py"))
ENTERED = 78
"""Modules on the way of a healthy run, at most: to follow it is to read these."""
CHAIN = 40
"""Modules of which each imports the next, at most."""


@pytest.fixture(scope="module")
def facts():
    """Return of each module: how many lines hold code, the names of its classes, what it opens by which name.

    A module's syntax tree is walked once and not kept: those of all are a million objects.
    """
    return {str(path.relative_to(ROOT)): facts_of(path) for path in [*MODULES, ROOT / "cli.py"]}


def facts_of(path):
    text = path.read_text(encoding="utf-8")
    ignored: set[int] = set()
    classes, opened = list[str](), Counter[str]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            opened[opens_to_read(node)] += 1
        elif isinstance(node, ast.ClassDef):
            classes.append(node.name)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            for statement in node.body:
                if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                    ignored.update(range(statement.lineno, statement.end_lineno + 1))
    del opened[""]
    return code_lines(text, ignored), classes, dict(opened)


def code_lines(text, ignored):
    """Return how many lines of a module hold code: none of docstrings, no comments, no blank lines."""
    lines = enumerate(text.splitlines(), 1)
    return sum(
        1
        for number, line in lines
        if number not in ignored and line.strip(" \t#") and line.lstrip()[0] != "#"
    )


def test_no_module_has_more_than_300_lines_of_code(facts):
    assert {name: lines for name, (lines, _, _) in facts.items() if lines > 300} == {}


@pytest.fixture(scope="module")
def imports():
    grimp = pytest.importorskip("grimp")
    built = grimp.build_graph("rapid_des", cache_dir=None)  # types count too
    return nx.DiGraph((a, b) for a in built.modules for b in built.find_modules_directly_imported_by(a))


def test_no_modules_import_each_other_in_a_circle(imports):
    assert [sorted(part) for part in nx.strongly_connected_components(imports) if len(part) > 1] == []


def test_chains_of_imports_are_short(imports):
    chain = nx.dag_longest_path(imports)
    assert len(chain) <= CHAIN, "\n".join(chain)


def test_no_class_name_has_two_meanings(facts):
    names = Counter(name for _, classes, _ in facts.values() for name in classes)
    assert [name for name, times in names.items() if times > 1] == []


def test_every_package_has_an_init_file():
    folders = {path.parent for path in MODULES}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"])
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
    names = {f"rapid_des.{path.stem}" for path in top} - {"rapid_des.__init__"}
    assert names | {"validation"} == layered


def test_following_a_healthy_run_leads_through_few_modules(capsys):
    command = ["run", "llama2_7b_train", "--on", "dgx_a100", "--engine", "compiled"]
    folder, entered = str(ROOT / "rapid_des"), set()

    def note(frame, event, _):
        code = frame.f_code  # bodies of modules and classes are no functions
        if event == "call" and code.co_flags & inspect.CO_OPTIMIZED and code.co_filename.startswith(folder):
            entered.add(code.co_filename.removeprefix(folder))

    for _ in range(2):  # what is imported, loaded or worked out once is not on the way
        cli(command, standalone_mode=False)
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        cli(command, standalone_mode=False)
    finally:
        sys.setprofile(before)
    assert "step time" in capsys.readouterr().out
    assert len(entered) <= ENTERED, "\n".join(sorted(entered))


OPENERS = {
    "open", "fdopen", "read_text", "read_bytes",  # of builtins, io, os, gzip, zipfile, tarfile, Path, …
    "GzipFile", "ZipFile", "TarFile", "FileIO", "mmap", "connect", "memmap", "fromfile", "loadtxt",
    "genfromtxt", "read_csv", "read_excel", "read_json", "read_parquet", "read_table", "ParquetFile",
    "ParquetDataset", "open_csv", "memory_map", "input_stream", "OSFile", "FileInput", "getlines", "CDLL",
}  # fmt: skip
OPENERS_OF = {
    ("np", "load"), ("numpy", "load"), ("json", "load"), ("tomllib", "load"), ("pickle", "load"),
    ("ElementTree", "parse"), ("yaml", "load"), ("marshal", "load"), ("shelve", "open"),
}  # fmt: skip
OPENED_OTHERWISE = {
    "rapid_des/inputs.py": {"open": 2, "fdopen": 1},  # the one way; gzip of what it opened
    "rapid_des/chakra/wire.py": {"read_bytes": 2},  # the package's own schemas, and what protoc wrote of them
    "rapid_des/compiling/library.py": {"read_bytes": 2},  # the package's own source, the user's own folder
    "rapid_des/learned/__init__.py": {"ZipFile": 1, "load": 1},  # of what inputs.py opened
    "rapid_des/public_names.py": {"read_text": 1},  # a stub of the package
    "rapid_des/report/evidence.py": {"read_text": 1},  # a table of the package
    "rapid_des/report/forecast.py": {"read_text": 1},  # a table of the package
    "rapid_des/report/page/document.py": {"read_text": 1},  # the package's own style and script
    "rapid_des/serving/uncertainty.py": {"read_text": 1},  # the same
    "rapid_des/serving/hashed_traces.py": {"open": 1},  # gzip of what inputs.py opened
    "rapid_des/studies/database.py": {"connect": 1},  # of what inputs.py has looked at
    "rapid_des/profiles/kineto.py": {"open": 1},  # gzip of what inputs.py opened
    "rapid_des/profiles/nsight.py": {"open": 1, "connect": 1},  # the same; of what inputs.py has looked at
    "rapid_des/studies/points.py": {"read_bytes": 1},  # the package's own source
    "rapid_des/chakra/source.py": {"read_json": 1},  # the package's own
    "rapid_des/studies/store.py": {"ParquetFile": 2, "open": 1},  # of what inputs.py opened; Store.open
    "rapid_des/studies/results.py": {"open": 1},  # the same
    "rapid_des/cli/studies.py": {"open": 1},  # the same
    "rapid_des/cli/sources.py": {"open": 1},  # the same
    "rapid_des/cli/ui/server.py": {"read_text": 1},  # the page's own files
    "rapid_des/cli/ui/command.py": {"open": 1},  # a browser
    "rapid_des/cli/main.py": {"open": 1},  # os.devnull, where nobody reads on
    "rapid_des/processes.py": {"open": 1},  # the same, where no worker writes
    "rapid_des/cli/entry.py": {"open": 2},  # the same, for streams that are closed
}


def opens_to_read(node):
    """Return the name by which a call opens a file for reading, if it does."""
    function = node.func
    if isinstance(function, ast.Name):
        return function.id if function.id in OPENERS - {"read_text", "connect"} else ""
    if not isinstance(function, ast.Attribute):
        return ""
    holder = getattr(function.value, "id", "")
    if (holder, function.attr) in OPENERS_OF:
        return function.attr
    words = [argument.value for argument in (*node.args, *(each.value for each in node.keywords))
             if isinstance(argument, ast.Constant) and isinstance(argument.value, str)]  # fmt: skip
    writes = any(word in {"w", "wb", "a", "x", "xb"} for word in words)
    return function.attr if function.attr in OPENERS and not writes else ""


def test_every_input_is_opened_in_one_checked_way(facts):
    found = {name: opened for name, (_, _, opened) in facts.items()}
    others = {name: counts for name, counts in found.items() if counts != OPENED_OTHERWISE.get(name, {})}
    assert others == {}
