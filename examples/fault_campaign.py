"""A fault campaign: what degraded parts cost a job."""

import rapid_des as rd


def main() -> None:
    """Slow a link and a GPU of a training job, then draw faults at random places."""
    job = rd.load_job("llama2_7b_train")
    machine = rd.load_machine("dgx_a100")
    for text in ("link=gpu0-switch0 bandwidth=0.25", "gpu=3 compute=0.9", "dimension=nvlink latency=2us"):
        hurt = rd.scenario(job, machine, [rd.parse_fault(text)])
        print(f"{text:36} {hurt.slowdown - 1:+.1%}")

    # A fault whose place and strength are drawn. A seed makes the draws repeatable.
    slow = "random=gpus count=1 compute=uniform(0.6,0.95)"
    sample = rd.faults_sample(job, machine, [slow], draws=20, seed=1, mode="hierarchical")
    added = sorted(row.slowdown - 1 for row in sample.rows)
    print(f"one slow GPU, 20 draws: {added[0]:+.1%} to {added[-1]:+.1%}, median {added[10]:+.1%}")


if __name__ == "__main__":
    main()
