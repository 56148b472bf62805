import json
from importlib import import_module

import pytest
from click.testing import CliRunner

from rapid_des.cli.validate import validate as command
from rapid_des.errors import InputError
from rapid_des.report.study_text import validation_report
from rapid_des.report.tables import text
from validation import PROVIDERS, DataFolder, open_folder, validate
from validation.measurements import CHECKOUT_DATA

HEADER = "gpu,op,dtype,M,N,K,time_us,framework,kernel,case_id,tflops,source\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "operators").mkdir()
    rows = [
        f"{gpu},gemm,bfloat16,512,4096,4096,90.0,vllm-0.14.0,k,case{index},1,aic\n"
        for index, gpu in enumerate(["A100-SXM4-80GB", "A100-SXM4-80GB", "Abacus"])
    ]
    (tmp_path / "operators" / "gemm_aiconfigurator.csv").write_text(HEADER + "".join(rows))
    return DataFolder(tmp_path, split=False)


def test_a_folder_with_one_file_is_scored_and_the_absent_ones_are_listed(folder):
    report = validate(folder, ["operators/gemm"])
    assert report["topics"]["operators/gemm/A100-SXM4-80GB/bfloat16"]["rows"] == 2
    assert "operators/layer_ops_vidur.csv" in report["absent"]
    assert "operators/layer_ops_vidur.csv" in "\n".join(text(validation_report(report)))


def test_a_gpu_without_a_device_file_is_reported_and_not_dropped(folder):
    figures = validate(folder, ["operators/gemm/Abacus"])["topics"]["operators/gemm/Abacus/bfloat16"]
    assert figures["unsupported"] == {"no device file for Abacus": 1}


def test_an_unknown_topic_is_an_error_that_names_those_there_are(folder):
    with pytest.raises(InputError, match="operators/gemm"):
        validate(folder, ["operators/gemmm"])


def test_a_folder_without_the_file_of_a_known_topic_is_an_error_that_names_the_file(tmp_path):
    with pytest.raises(InputError) as error:
        validate(DataFolder(tmp_path, split=False), ["training/dgxc"])
    assert f"{tmp_path} holds no measured file for 'training/dgxc'" in str(error.value)
    assert "looked for training_e2e/dgxc_scaling.csv" in str(error.value)
    assert "topics:" not in str(error.value)


def test_a_folder_that_is_none_is_an_error(tmp_path):
    with pytest.raises(InputError, match="no folder"):
        open_folder(tmp_path / "nothing")


def test_json_holds_topics_constants_and_residuals(folder):
    result = CliRunner().invoke(command, ["operators/gemm", "--data", str(folder.path), "--json"])
    report = json.loads(result.stdout)
    figures = report["topics"]["operators/gemm/A100-SXM4-80GB/bfloat16"]
    assert {"rows", "cases", "mean_abs_pct", "bias_pct", "null_mean_abs_pct"} <= set(figures)
    assert figures["residuals"][0]["case_id"] == "case0"
    assert "tensor" in report["constants"]["gemm/a100_sxm_80gb/vllm/bf16"]


def test_pictures_are_drawn(folder, tmp_path):
    result = CliRunner().invoke(
        command, ["operators/gemm/A100", "--data", str(folder.path), "--plot", str(tmp_path / "p")]
    )
    assert result.exit_code == 0
    assert [path.suffix for path in (tmp_path / "p").iterdir()] == [".png"]


DATA = open_folder(None)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_topics_of_a_provider_start_as_the_table_says(provider):
    module, function = provider.split(":")
    topics = getattr(import_module(f"validation.{module}"), function)(DATA)
    strange = [topic.name for topic in topics if not topic.name.startswith(PROVIDERS[provider])]
    assert strange == []


@pytest.mark.skipif(not CHECKOUT_DATA.is_dir(), reason="the data ships with a checkout only")
class TestClaims:
    """What the repository claims of its GEMM model, on the test split."""

    REACH = {
        "operators/gemm/A100-SXM4-80GB/bfloat16": 10.0,
        "operators/gemm-large/A100-SXM4-80GB/bfloat16": 6.0,
        "operators/gemm/H100-SXM-80GB/bfloat16": 10.0,
        "operators/gemm/H100-SXM-80GB/fp8": 15.0,
        "operators/gemm/B200-SXM-180GB/nvfp4": 15.0,
        "operators/moe/H100-SXM-80GB/bfloat16": 15.0,
    }

    def test_error_beats_its_target_and_the_null_model(self):
        topics = validate(open_folder(None), list(self.REACH))["topics"]  # of one reading of the files
        error = {name: topics[name]["mean_abs_pct"] for name in self.REACH}
        assert {name: found for name, found in error.items() if found > self.REACH[name]} == {}
        null = {name: 0.7 * topics[name]["null_mean_abs_pct"] for name in self.REACH}
        assert {name: found for name, found in error.items() if found >= null[name]} == {}
