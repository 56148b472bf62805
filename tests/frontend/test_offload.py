"""Offloading: what leaves the GPU, what comes back when, and what of it compute hides."""

import pytest

from rapid_des.errors import InputError
from rapid_des.frontend import build, load_job, memory
from rapid_des.frontend.memory import section_memory
from rapid_des.frontend.parts import ModelSection
from rapid_des.machine import load_machine
from rapid_des.simulation import simulate

ACTIVATIONS = ("training.offload_activations", "1.0")
OPTIMIZER = ("training.offload_optimizer", "true")


def nodes_of(job, prices):
    """Return the nodes of rank 0 and their names."""
    nodes = build(job, prices).traces.ranks[0].nodes
    return nodes, [nodes.names[name] for name in nodes.name]


def waits_of(nodes, row):
    return nodes.dependencies[nodes.dependency_starts[row] : nodes.dependency_starts[row + 1]].tolist()


def test_every_layers_activations_leave_and_come_back(tiny, prices):
    job = tiny(ACTIVATIONS)
    nodes, names = nodes_of(job, prices)
    assert names.count("offload.activations") == names.count("fetch.activations") == 4 * job.micro_batches
    kept = section_memory(tiny())[ModelSection("block")].activations
    copies = [row for row, name in enumerate(names) if name.endswith(".activations")]
    assert {int(nodes.duration[row]) for row in copies} == {kept}
    streams = {nodes.streams[nodes.stream[row]] for row in copies}
    assert streams == {"to-host", "from-host"}


def test_a_backward_waits_for_what_comes_back_a_layer_ahead(tiny, prices):
    nodes, names = nodes_of(tiny(ACTIVATIONS), prices)
    fetches = [row for row, name in enumerate(names) if name == "fetch.activations"]
    first = names.index("backward.L2.ffn.out.input_gradient")
    own = next(row for row in waits_of(nodes, first) if row in fetches)
    # Asked for when the layer behind it began: after the head's backward.
    assert names[max(waits_of(nodes, own))] == "backward.head.norm"


def test_a_share_leaves_the_rest(tiny):
    def kept(share):
        return section_memory(tiny(("training.offload_activations", share)))[ModelSection("block")]

    whole, half = kept("0"), kept("0.5")
    assert half.activations == whole.activations - half.away
    assert half.away == pytest.approx(whole.activations / 2, abs=20)
    assert half.fullest == whole.fullest


def test_gradients_still_complete_where_their_layers_stand(tiny, prices):
    settings = ("parallelism.dp", "2"), ("training.bucket_parameters", "30000")
    for more in ((), (ACTIVATIONS,)):
        nodes, names = nodes_of(tiny(*settings, *more), prices)
        bucket = next(row for row, name in enumerate(names) if name.startswith("gradients.dp.reduce"))
        assert [names[row] for row in waits_of(nodes, bucket)] == ["backward.L3.ffn.in.weight_gradient"]


def test_the_hosts_optimizer_works_bucket_by_bucket(tiny, prices):
    nodes, names = nodes_of(tiny(OPTIMIZER, ("training.bucket_parameters", "50000")), prices)
    parameters = memory(tiny()).stages[0].parameters
    buckets = -(-parameters // 50000)
    for name in ("offload.gradients", "optimizer.host", "fetch.weights"):
        assert names.count(name) == buckets
    assert "optimizer" not in names
    moved = {name: sum(int(nodes.duration[row]) for row, own in enumerate(names) if own == name)
             for name in ("offload.gradients", "optimizer.host", "fetch.weights")}  # fmt: skip
    # fp32 gradients go, 16-bit weights come; the update reads 16 bytes and writes 14.
    bytes_each = {"offload.gradients": 4, "optimizer.host": 30, "fetch.weights": 2}
    assert moved == {name: size * parameters for name, size in bytes_each.items()}


def test_the_hosts_optimizer_keeps_its_states_there(tiny):
    assert memory(tiny(OPTIMIZER)).stages[0].categories["optimizer"] == 0


def step_time(settings, host):
    machine = load_machine("dgx_a100", device_settings={"host": host})
    return simulate(load_job("llama2_7b_train", settings=settings), machine, mode="analytical").step_time


def test_what_compute_hides_costs_nothing_and_the_rest_shows():
    fast = "{to_host: 4 TB/s, from_host: 4 TB/s, memory: 4 TB/s}"
    slow = "{to_host: 10 GB/s, from_host: 10 GB/s, memory: 4 TB/s}"
    plain = step_time({}, fast)
    settings = {"training.offload_activations": 1.0}
    assert plain < step_time(settings, fast) < 1.01 * plain
    assert step_time(settings, slow) > 1.5 * plain


def test_a_device_must_say_how_it_is_joined_to_its_host():
    job = load_job("llama2_7b_train", settings={"training.offload_optimizer": True})
    with pytest.raises(InputError, match="states no bandwidths of its `host`"):
        simulate(job, load_machine("dgx_a100", device_settings={"host": "null"}), mode="analytical")


@pytest.mark.parametrize(
    "more",
    [
        [("training.zero_stage", "3")],
        [("training.zero_stage", "3"), ("training.unit_copies", "per_parameter")],
        [("training.zero_stage", "1"), ("training.overlap_parameters", "true")],
    ],
    ids=str,
)
def test_activations_leave_layers_that_wait_for_their_parameters(tiny, prices, more):
    job = tiny(ACTIVATIONS, ("parallelism.dp", "2"), *more)
    nodes, names = nodes_of(job, prices)
    assert names.count("offload.activations") == names.count("fetch.activations") == 4 * job.micro_batches
    firsts = [row for row, name in enumerate(names) if name.startswith("backward.L2.")]
    waits = {names[wait] for wait in waits_of(nodes, firsts[0])}
    assert "fetch.activations" in waits
    assert ("parameters.gather" in waits) == (job.training.zero_stage == 3)
    fullest = [memory(one).stages[0].activations for one in (tiny(*more, ("parallelism.dp", "2")), job)]
    assert fullest[1] < fullest[0]


@pytest.mark.parametrize("stage", [1, 3])
def test_modes_agree_where_activations_leave_under_gathered_parameters(stage):
    changes = {
        "model.layers": 4, "parallelism": {"dp": 8}, "training.global_batch": 8, "training.zero_stage": stage,
        "training.sequence_length": 1024, "training.offload_activations": 0.5, "software": "fsdp",
        "training.overlap_parameters": stage == 1,
    }  # fmt: skip
    job, machine = load_job("llama2_7b_train", settings=changes), load_machine("dgx_a100")
    steps = [
        simulate(job, machine, mode=mode, engine=engine).step_time
        for mode, engine in (("flattened", "simpy"), ("flattened", "compiled"), ("hierarchical", "compiled"))
    ]
    assert steps[0] == steps[1] and steps[2] == pytest.approx(steps[0], rel=0.02)
