"""Models of the Hugging Face hub are read by their ids; architectures that are not simulated are named."""

import json
import re
import sys
from types import ModuleType
from typing import Any

import pytest

from rapid_des.errors import ConfigError, InputError
from rapid_des.importers.hugging_face import REFUSED, import_hugging_face
from rapid_des.studies.model_jobs import names_model, training_document
from tests.importers.test_hugging_face import LLAMA_3_1_8B


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_simulated_of_a_known_architecture_is_named(tmp_path, name):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": name}))
    with pytest.raises(ConfigError, match=re.escape(REFUSED[name])):
        import_hugging_face(tmp_path)


def test_a_model_of_the_hub_is_read_by_its_id(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_1_8B))
    hub: Any = ModuleType("huggingface_hub")
    hub.hf_hub_download = lambda identifier, file: tmp_path / file if identifier == "org/llama" else 1 // 0
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.chdir(tmp_path)
    assert import_hugging_face("org/llama").model.parameters == 8_030_261_248
    assert training_document("org/llama", 2**22).tree["model"]["layers"] == 32
    assert not names_model("workloads/llama2_7b_train")  # a preset, whatever stands before its name


def test_without_the_extra_or_the_network_a_hub_id_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        InputError,
        match=r"org/llama is neither a file nor a preset; ids .* need `pip install 'rapid-des\[hub\]'`",
    ):
        import_hugging_face("org/llama")
    hub: Any = ModuleType("huggingface_hub")

    def unreachable(*_):
        raise OSError("no route\nto host")

    hub.hf_hub_download = unreachable
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    with pytest.raises(InputError, match="does not hand out its config.json: no route to host"):
        import_hugging_face("org/llama")
