"""Parts of other distributions are found by name, refused in one line, and left alone unless asked for."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from rapid_des.device import load_device
from rapid_des.device.operators import Gemm
from rapid_des.device.pricing import estimate
from rapid_des.errors import ConfigError, InputError
from rapid_des.extensions import (
    BUILT_IN,
    COLLECTIVES,
    FABRICS,
    IMPORTERS,
    LAYERS,
    OPERATORS,
    POLICIES,
    find,
    names,
)
from rapid_des.importers import Importer
from tests.cli.shell import call, refused

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
IMPORTER = """
from rapid_des.importers import Importer

class Found:
    notes, ignored, summary = ("one note",), (), "found"
    def __init__(self, path): self.path = path
    def files(self, name): return {f"{name}.yaml": f"# from {self.path.name}\\n"}
    def as_json(self): return {"path": self.path.name}

PART = Importer("Read theirs.", lambda path: False, lambda path, *, ignore: Found(path), writes="model")
"""
OPERATORS_OF_A_FILE = """
from rapid_des.device.operators import Estimate
from rapid_des.device.pricing import OperatorSource

class Fixed:
    def __init__(self, file): self.duration = int(file.read_text())
    def estimate(self, operator): return Estimate(self.duration, "launch", 0, {}, {}, "theirs")

PART = OperatorSource(lambda file, device, memory: Fixed(file))
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs a distribution of one module and one entry point, `theirs`."""

    def add(group, code, *, name="theirs", distribution="their-package"):
        folder = tmp_path / distribution
        info = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (folder / "their_module.py").write_text(code)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = their_module:PART\n")
        monkeypatch.syspath_prepend(folder)

    yield add
    sys.modules.pop("their_module", None)


def test_parts_of_the_package_are_the_entry_points_that_pyproject_states():
    stated = PROJECT["project"]["entry-points"]
    assert {group: dict(parts) for group, parts in BUILT_IN.items() if parts} == stated


def test_the_lock_file_is_that_of_the_dependencies():
    packages = tomllib.loads((Path(__file__).parents[1] / "uv.lock").read_text())["package"]
    (own,) = [each for each in packages if each["name"] == "rapid-des"]
    locked = {(each["name"], each.get("specifier", "")) for each in own["metadata"]["requires-dist"]}
    project = PROJECT["project"]
    stated = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    parts = [re.fullmatch(r"([\w-]+)(.*)", each).groups() for each in stated]
    assert locked == {
        (name.lower(), ",".join(sorted(limits.split(","), reverse=True))) for name, limits in parts
    }


def test_importers_of_the_package_stand_in_the_contract_that_keeps_them_apart():
    (contract,) = [each for each in PROJECT["tool"]["importlinter"]["contracts"] if "modules" in each]
    folders = (Path(__file__).parents[1] / "rapid_des" / "importers").glob("*/__init__.py")
    assert sorted(contract["modules"]) == sorted(
        f"rapid_des.importers.{path.parent.name}" for path in folders
    )


def test_an_importer_of_another_distribution_is_a_command(install, tmp_path):
    install(IMPORTERS, IMPORTER)
    (tmp_path / "file").write_text("")
    assert "Read theirs." in call("import", "theirs", "--help").out
    answer = call("import", "theirs", tmp_path / "file")
    assert (answer.code, answer.out) == (0, "# from file\n")
    assert call("import", "theirs", tmp_path / "file", "--json").json["path"] == "file"


def test_operators_of_another_distribution_price_a_device_that_names_them(install, tmp_path):
    install(OPERATORS, OPERATORS_OF_A_FILE)
    (tmp_path / "seven.txt").write_text("7")
    device = load_device({"base": "a100_sxm_80gb", "operators": f"theirs:{tmp_path / 'seven.txt'}"})
    assert "their_module" not in sys.modules  # not before an operator is priced
    assert estimate(Gemm(8, 8, 8), device).duration == 7


def test_operators_that_nobody_has_are_refused_with_those_there_are(install):
    install(OPERATORS, OPERATORS_OF_A_FILE)
    with pytest.raises(ConfigError, match="native, roofline, learned:FILE, theirs:FILE"):
        load_device({"base": "a100_sxm_80gb", "operators": "nobody:file"})


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("raise RuntimeError('two\\nlines')", "cannot be imported: RuntimeError: two lines"),
        ("import a_module_that_is_not_there", "cannot be imported: ModuleNotFoundError"),
        ("raise SystemExit(0)", "cannot be imported: SystemExit: 0"),
        ("OTHER = 1", "cannot be imported: AttributeError"),
        ("PART = {}", "is of type dict; allowed: Importer"),
        (OPERATORS_OF_A_FILE, "is of type OperatorSource; allowed: Importer"),
    ],
)
def test_a_part_that_can_not_be_used_is_one_line(install, code, problem):
    install(IMPORTERS, code)
    answer = refused(call("import", "theirs", "file"))
    assert len(answer.splitlines()) == 1
    assert problem in answer
    assert "rapid_des.importers: 'theirs' of their-package (their_module:PART)" in answer


@pytest.mark.parametrize(
    "words",
    [
        "import --help",
        "import hf --help",
        "presets",
        "topology show dgx_a100",
        "operator gemm 64 64 64 --device a100_sxm_80gb",
        "--help",
    ],
)
def test_a_part_that_nobody_asks_for_is_not_imported(install, words):
    for group in BUILT_IN:
        install(group, "raise RuntimeError", distribution=group.replace("_", "-").replace(".", "-"))
    answer = call(*words.split())
    assert answer.code == 0, answer.err
    assert "their_module" not in sys.modules


def test_help_lists_importers_of_other_distributions(install):
    install(IMPORTERS, "raise RuntimeError")
    assert "theirs" in call("import", "--help").out


def test_nobody_can_take_the_name_of_a_part_of_the_package(install):
    install(IMPORTERS, IMPORTER, name="hf")
    assert find(IMPORTERS, "hf", Importer).summary != "Read theirs."
    assert names(IMPORTERS) == tuple(BUILT_IN[IMPORTERS])
    assert "their_module" not in sys.modules


def test_a_name_that_two_distributions_have_is_refused_with_both(install):
    install(IMPORTERS, IMPORTER, distribution="first")
    install(IMPORTERS, IMPORTER, distribution="second")
    assert "is in first and second; uninstall one" in refused(call("import", "theirs", "file"))


def test_a_name_that_nobody_has_is_refused_with_those_there_are():
    with pytest.raises(InputError, match="'nobody' is not there; allowed: infragraph"):
        find(FABRICS, "nobody", Importer)


LOSSY = """
from rapid_des.chakra.trace import CollectiveType
from rapid_des.network.collectives import Algorithm, Draft

PART = Algorithm("lossy", {CollectiveType.ALL_GATHER: lambda demand: Draft(demand).seal()})
"""
LAYER = """
from rapid_des.config import Spec
from rapid_des.frontend.layers import LayerSource

class Keys(Spec, frozen=True):
    heads: int

PART = LayerSource(Keys, lambda keys, model: 1 // keys.heads)
"""


def test_an_algorithm_that_loses_data_is_refused_by_name(install):
    install(COLLECTIVES, LOSSY, name="lossy")
    answer = refused(call("topology", "bench", "dgx_a100", "--op", "all_gather", "--algorithm", "lossy"))
    assert "rapid_des.collectives: 'lossy' does not do all_gather of 2 members" in answer


def test_keys_of_a_layer_kind_are_those_that_it_states(install):
    install(LAYERS, LAYER, name="strange")
    stated = "job.model.attention={{kind: extension, name: strange, keys: {}}}".format
    for keys, problem in (
        ("{width: 1}", "strange.keys: unknown key 'width'; allowed: heads"),
        ("{heads: two}", "strange.keys.heads: 'two' is not a whole number"),
        ("{heads: 1}", "rapid_des.layers: 'strange' made 1; it must make a Sublayer"),
        ("{heads: 0}", "'strange' of their-package (their_module:PART) failed: ZeroDivisionError"),
    ):
        answer = call("run", "llama2_7b_train", "--on", "dgx_a100", "--set", stated(keys))
        assert answer.code == 2 and len(answer.err.splitlines()) == 1
        assert problem in answer.err


def test_a_policy_that_nobody_has_is_refused_with_those_there_are(install):
    install(POLICIES, "raise RuntimeError", name="mine")
    answer = call("serve", "llama3_1_70b_serve", "--on", "dgx_h100", "--set", "job.serving.policy=nobody")
    assert "policy: 'nobody' is not one of vllm_v1, " in refused(answer)
    assert "static, mine" in answer.err
