"""A first run: the time of one training step, and where it goes."""

import rapid_des as rd


def main() -> None:
    """Simulate a step of Llama 2 7B on eight A100, then the same step with twice the batch."""
    machine = rd.load_machine("dgx_a100")
    job = rd.load_job("llama2_7b_train")
    result = rd.simulate(job, machine)

    print(f"a step takes {result.step_time}, bound by {result.bound}")
    for part, spent in result.breakdown.items():
        if spent:
            print(f"  {part:8} {spent / result.step_time:6.1%}  {spent}")

    # A job with some keys changed is another job. The machine stays as it is.
    larger = rd.load_job(job, settings={"training.global_batch": 64})
    twice = rd.simulate(larger, machine)
    longer = twice.step_time / result.step_time
    print(f"with twice the batch it takes {twice.step_time}, {longer:.2f} times as long")

    # The operators of the rank that ends last, the longest first.
    for row in result.operators()[:3]:
        print(f"  {row.operator:40} runs {row.runs} times")


if __name__ == "__main__":
    main()
