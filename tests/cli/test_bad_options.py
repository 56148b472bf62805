"""Words on the command line that are wrong: exit code 2, what was said and what is allowed."""

import shlex

import pytest

from tests.cli.shell import ROOT, call, refused

TRACE = ROOT / "workloads" / "traces" / "two_stages"

BAD_WORDS = [
    ("", "Usage"),
    ("nope", "No such command 'nope'"),
    ("--nope", "--nope"),
    ("run", "Missing argument 'JOB'"),
    ("run llama2_7b_train", "Missing option '--on'"),
    ("run llama2_7b_train dgx_a100", "--on"),
    ("run llama2_7b_trian --on dgx_a100", "did you mean 'llama2_7b_train'?"),
    ("run llama2_7b_train --on dgx_a10", "did you mean 'dgx_a100'?"),
    ("run llama2_7b_train --on ''", "no machine file ''"),
    ("run '' --on dgx_a100", "no job file ''"),
    ("run / --on dgx_a100", "no job file '/'"),
    ("run ~no-such-user/x --on dgx_a100", "no job file '~no-such-user/x'"),
    ("run 'a\nb' --on dgx_a100", "no job file 'a\\nb'"),
    ("run llama2_7b_train --on /dev/null", "no machine file '/dev/null'"),
    ("run llama2_7b_train --on dgx_a100 --mode fast", "'fast' is not one of flattened, hierarchical"),
    ("run llama2_7b_train --on dgx_a100 --engine warp", "'warp' is not one of auto, simpy, compiled"),
    ("run llama2_7b_train --on dgx_a100 --timeline /dev/null/x.json", "/dev/null/x.json: cannot be written"),
    ("run llama2_7b_train --on dgx_a100 --timeline /", "/: cannot be written"),
    ("run llama2_7b_train --on dgx_a100 --links /dev/null/x.csv", "/dev/null/x.csv: cannot be written"),
    ("run llama2_7b_train --on dgx_a100 --compare-modes --links x.csv", "--links"),
    ("run llama2_7b_train --on dgx_a100 --compare-modes --mode hybrid", "--mode"),
    ("replay {trace} --on dgx_a100 --fault 'all=links bandwidth=1e-9 from=1us'", "allowed: 0.0001 and more"),
    (
        "replay {trace} --on dgx_a100 --fault 'all=links latency=9223372036854775807ps'",
        "allowed: 0 to 3600 s",
    ),
    ("replay {trace}", "--on MACHINE"),
    ("replay nothing --on dgx_a100", "nothing: no such file or folder, and no trace files"),
    ("replay ~no-such-user/x --on dgx_a100", "~no-such-user"),
    ("replay / --on dgx_a100", "no trace files"),
    ("replay {root}/README.md --on dgx_a100", "README.md: corrupt at byte"),
    ("replay {root}/workloads/traces --on dgx_a100", "several trace sets"),
    ("replay {trace} --on dgx_a100 --groups nowhere.json", "nowhere.json: cannot be read"),
    ("replay {trace} --on dgx_a100 --deps some", "'auto', 'data', 'ctrl', 'both'"),
    ("replay {trace} --on dgx_a100 --dialect some", "pytorch"),
    ("replay {trace} --on dgx_a100 --time-unit h", "'ps', 'ns', 'us', 'ms', 's'"),
    ("replay {trace} --on dgx_a100 --dtype-bytes -1", "allowed: 1 to 16"),
    ("replay {trace} --on dgx_a100 --dtype-bytes two", "not a whole number"),
    ("replay {trace} --on dgx_a100 --streams none", "'auto', 'ordered', 'unordered'"),
    ("replay {trace} --on dgx_a100 --set machine.fabric.0.size=1", "the trace has rank 1"),
    ("replay {trace} --astra-network x", "--astra-system"),
    ("replay {trace} --astra-network x --astra-system y", "x: cannot be read"),
    ("trace show", "Missing argument 'PREFIX'"),
    ("trace show {trace} --rank 9", "rank 9 has no trace; 2 ranks"),
    ("trace show {trace} --first x", "not a whole number"),
    ("trace show {trace} --count -1", "out of range"),
    ("search splits_64 --executor local --address a:1", "an address is for the executor ray"),
    (
        "faults sample llama2_7b_train --on dgx_a100 --fault 'gpu=0 compute=0.5' --address a:1",
        "an address is for the executor ray",
    ),
    ("plan llama2_7b_train --on dgx_a100 --address a:1", "an address is for the executor ray"),
    ("trace show {trace} --plot /dev/null/x.svg", "cannot be written"),
    ("trace show {trace} --plot x.docx", ".png, .svg or .pdf"),
    ("trace check nothing", "nothing: no such file or folder, and no trace files"),
    ("trace stats {root}/README.md", "corrupt at byte"),
    ("trace convert {trace}", "--output"),
    ("trace convert {trace} -o /dev/null/x", "cannot be written"),
    ("trace convert {trace} -o x --to xml", "'xml' is not one of"),
    ("trace write llama2_7b_train --on dgx_a100", "--output"),
    ("trace write llama2_7b_train --on dgx_a100 -o /dev/null", "cannot be written"),
    ("topology show nope", "no machine file 'nope'"),
    ("topology show dgx_a100 --plot x.docx", ".png, .svg or .pdf"),
    ("topology route dgx_a100 0", "Missing argument 'DESTINATION'"),
    ("topology route dgx_a100 0 99", "no gpu 99; allowed: gpu0 to gpu7"),
    ("topology route dgx_a100 zero one", "'zero' names no node"),
    ("topology route dgx_a100 (0,0,0) 1", "no GPU at (0,0,0)"),
    ("topology route dgx_a100 0 1 --fault nonsense", "'nonsense' is not key=value"),
    ("topology route dgx_a100 0 1 --fault ''", "needs exactly one of link"),
    ("topology route dgx_a100 0 1 --fault link=0-1", "has no effect"),
    ("topology route dgx_a100 0 1 --fault 'link=0-99 down=true'", "no gpu 99"),
    ("faults run llama2_7b_train --on dgx_a100", "at least one --fault"),
    (
        "faults run llama2_7b_train --on dgx_a100 --fault 'gpu=0 compute=1.5'",
        "compute: 1.5 is not a number above 0 and up to 1",
    ),
    (
        "faults run llama2_7b_train --on dgx_a100 --fault 'gpu=0 compute=0'",
        "compute: 0 is not a number above 0",
    ),
    ("faults run llama2_7b_train --on dgx_a100 --fault 'gpu=0 compute=nan'", "'nan'"),
    ("faults run llama2_7b_train --on dgx_a100 --fault 'gpu=0 down=true from=5ms until=3ms'", "is not after"),
    ("faults run llama2_7b_train --on dgx_a100 --fault 'node=5 down=true'", "there is no node 5"),
    ("faults criticality llama2_7b_train --on dgx_a100 --derate 7", "above 0 and below 1"),
    ("faults criticality llama2_7b_train --on dgx_a100 --kind cables", "'cables' is not one of"),
    ("topology bench dgx_a100 --sizes big", "'big' is not a quantity"),
    ("topology bench dgx_a100 --sizes 1MiB:1KiB", "must rise"),
    ("topology bench dgx_a100 --factor 1", "2 or more"),
    ("topology bench dgx_a100 --gpus 99", "2 to 8"),
    ("topology bench dgx_a100 --op all_reduced", "is not one of all_reduce"),
    ("topology bench dgx_a100 --algorithm rang", "'rang' is not a collective algorithm"),
    ("operator gemm 1 2", "Missing argument 'K'"),
    ("operator gemm 1 2 x --device a100_sxm_80gb", "not a whole number"),
    ("operator gemm 0 1 1 --device a100_sxm_80gb", "1<=x"),
    ("operator gemm 1 1 1 --device a100_smx_80gb", "did you mean 'a100_sxm_80gb'?"),
    ("operator gemm 1 1 1 --device v100_sxm2 --dtype fp8", "has no fp8 arithmetic"),
    ("operator attention 1 1 1 --heads 3 --kv-heads 2 --head-dim 8 --device a100_sxm_80gb", "no multiple"),
    ("operator roofline llama2_7b_train --on dgx_a100 -o x.docx", ".png, .svg or .pdf"),
    ("device calibrate nope.csv --device a100_sxm_80gb", "nope.csv: no such file"),
    (
        "device calibrate nope.csv --device a100_sxm_80gb --section nope",
        "'nope' is not one of gemm, attention",
    ),
    ("bench nope", "'nope' is not one of"),
    ("device show nope", "no device file 'nope'"),
    (
        "validate nope",
        "no topic starts with 'nope'; topics: calibration/, goodput/, inference/",
    ),
    (
        "validate operators/gemx",
        "operators/activation, operators/attention, operators/embedding, operators/gemm",
    ),
    ("validate --data /nowhere", "/nowhere is no folder"),
    ("schema", "Missing argument"),
    ("schema nope", "'nope' is not one of"),
    ("presets nope", "'nope' is not one of"),
]

BAD_SETTINGS = [
    ("job", "not of the form job.KEY=VALUE"),
    ("=", "not of the form"),
    (".=3", "not of the form"),
    ("jobs.training.micro_batch=1", "not of the form"),
    ("job..=3", "unknown key ''"),
    ("job.x=1", "unknown key 'x'"),
    ("job.training.micro_batch=", "training.micro_batch"),
    ("job.training.micro_batch=[", "--set job.training.micro_batch: line"),
    ("job.training=3", "training"),
    ("job.training.micro_batch.x=3", "training.micro_batch"),
    ("job.model=nope", "no model file 'nope'"),
    ("job.model.hidden=2", "hidden 2 is not divisible"),
    ("job.parallelism.tp=16", "= 64 GPUs, the machine has 8"),
    ("job.training.global_batch=16777216", "at most"),
    ("machine.fabric.9.size=2", "'9' is no item of this list; allowed: 0 to 0"),
    ("machine.fabric.x.size=2", "'x' is no item of this list"),
    ("machine.fabric.-1.size=2", "'-1' is no item of this list"),
    ("machine.fabric.0.size.1=2", "fabric[0].size"),
    ("machine.fabric.0.bandwidth=2", "2 is not a quantity"),
    ("machine.fabric.0.bandwidth=0x", "must be above 0"),
    ("machine.fabric.0.bandwidth=1 B/s", "s on one link; allowed: 100000 s"),
    ("machine.name=2x", "'DGX A100' is no number to multiply"),
    ("machine.gpus=2x", "the file states no 'gpus' to multiply"),
    ("machine.device=2", "device"),
    ("machine.faults=[{link: 0-99, down: true}]", "no gpu 99"),
    ("machine.faults=[{gpu: 0, down: true}]", "gpu0 is down"),
    ("device.sms=0", "sms: 0 is not a whole number from 1"),
    ("device.smx=9", "did you mean 'sms'?"),
    ("device.hbm.bandwidth=3", "3 is not a quantity"),
    ("device.hbm.bandwidth=0 B/s", "hbm: capacity and bandwidth must be above 0"),
    ("device.vector_peak={}", "vector_peak must state fp32"),
    ("device.tensor_peak.bf16=0 FLOP/s", "must be above 0"),
    ("device.l2_port_bytes_per_clock=0", "l2_port_bytes_per_clock: 0 is not a whole number from 1"),
    ("device.clock.boost=1 Hz", "at most clock.boost"),
    ("device.family=amper", "'amper' is no family file"),
    ("device.operators=guess", "'guess' is not one of native, roofline"),
    ("device.operators=learned:nowhere", "nowhere"),
    ("device.conditions.l2=tepid", "'tepid' is not one of"),
    ("device.launch.graph=9000 h", "out of range"),
    ("device.constants={gemx: {}}", "constants.gemx is not one of"),
]


@pytest.mark.parametrize(("words", "said"), BAD_WORDS)
def test_wrong_words_are_named(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in refused(call(*shlex.split(words.format(trace=TRACE, root=ROOT))))


def test_a_wrong_argument_is_one_line_with_where_more_is_said():
    answer = refused(call("plan", "llama2_7b_train", "--on", "dgx_a100", "--gpus", 0))
    said = "error: Invalid value for '--gpus': 0 is not in the range x>=1; rapid-des plan --help says more"
    assert answer == f"{said}\n"


@pytest.mark.parametrize(("setting", "said"), BAD_SETTINGS)
def test_wrong_settings_are_named(setting, said):
    assert said in refused(call("run", "llama2_7b_train", "--on", "dgx_a100", "--set", setting))


@pytest.mark.parametrize("command", ["run llama2_7b_trian", "replay nothing"])
def test_a_refusal_leaves_stdout_empty_where_json_was_asked_for(command):
    answer = call(*command.split(), "--on", "dgx_a100", "--json")
    refused(answer)
    assert answer.out == ""


def test_a_job_that_does_not_fit_the_memory_is_code_4_and_says_what_would_help():
    answer = call("run", "llama2_7b_train", "--on", "dgx_a100", "--set", "device.hbm.capacity=24 GB")
    said = refused(answer, 4)
    assert "needs 30" in said
    assert "it would fit with" in said


def test_a_fabric_that_is_cut_is_code_3_and_names_the_cut():
    cut = "machine.faults=[{link: 1-switch0, down: true}]"
    assert "gpu1" in refused(call("run", "llama2_7b_train", "--on", "dgx_a100", "--set", cut), 3)


@pytest.mark.parametrize(
    "setting",
    [
        "machine.fabric.0.bandwidth=7",
        "machine.switching.mode=foo",
        "machine.switching.modus=foo",
        "machine.fabrick=3",
        "machine.device=nowhere",
        "job.training.global_batch=x",
        "job.model=nowhere",
        "job.model.layers=x",
        "device.sms=x",
        "device.conditions.l2=tepid",
    ],
)
def test_a_wrong_setting_is_named_and_no_file(setting):
    said = refused(call("run", "llama2_7b_train", "--on", "dgx_a100", "--set", setting))
    assert said.startswith(f"error: --set {setting}: ")
    assert ".yaml" not in said


@pytest.mark.parametrize("command", [("run",), ("faults", "run")])
def test_a_fault_of_the_command_line_is_spelled_and_no_file_named(command):
    words = ("link=0-1 bandwidth=0.5", "gpu=77 compute=0.5")
    faults = [word for text in words for word in ("--fault", text)]
    said = refused(call(*command, "llama2_7b_train", "--on", "torus_2d_a100", *faults))
    assert said.startswith("error: --fault 'gpu=77 compute=0.5': ")
    assert "faults[" not in said
    assert ".yaml" not in said


@pytest.mark.parametrize("name", ["mine.yaml", "mine"])
def test_a_device_set_by_hand_is_looked_for_in_the_current_folder(name, tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("base: a100_sxm_80gb\nname: Mine\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    answer = call("run", "llama2_7b_train", "--on", "dgx_a100", "--set", f"machine.device={name}")
    assert "Mine" in answer.out


def test_a_written_set_has_nothing_to_repair(tmp_path):
    job = ("llama2_7b_train", "--on", "dgx_a100", "--set", "job.model.layers=2")
    assert call("trace", "write", *job, "-o", tmp_path / "t").code == 0
    checked = call("trace", "check", tmp_path / "t", "--repairs")
    assert (checked.code, "dropped" in checked.out) == (0, False)
