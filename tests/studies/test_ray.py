"""A study on two Ray nodes, one of which is killed: the digits of this process (run with `-m external`)."""

import pytest

from rapid_des.studies.sweep import sweep

STUDY = {
    "job": "llama2_7b_train",
    "on": "dgx_a100",
    "mode": "analytical",
    "axes": {"tp, dp": [[2, 2], [4, 1], [1, 4]], "job.training.global_batch": [16, 32, 48, 64]},
    "derive": {"job.parallelism.sequence_parallel": "tp > 1"},
}


@pytest.mark.external
@pytest.mark.filterwarnings("ignore")
def test_two_nodes_give_the_digits_of_this_process_though_one_is_killed():
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    other = cluster.add_node(num_cpus=1)
    killed = []

    def tell(title, done, expected):
        if done == 3:
            cluster.remove_node(other, allow_graceful=False)
            killed.append(done)

    try:
        found = sweep(STUDY, executor="ray", address=cluster.address, on_progress=tell)
    finally:
        import ray

        ray.shutdown()
        cluster.shutdown()
    assert killed == [3]
    alone = sweep(STUDY, executor="local")
    for column in ("step_time_ps", "memory_bytes", "key", "result"):
        values = [found.result(number).get(column) for number in range(1, 13)]
        if column == "result":
            values = [value["attribution_ps"] for value in values]
            assert values == [alone.result(number)["result"]["attribution_ps"] for number in range(1, 13)]
        else:
            assert values == [alone.result(number)[column] for number in range(1, 13)]
