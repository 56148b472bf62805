"""A plan, explained: the best layouts of a job, and what makes the second one slower."""

import rapid_des as rd


def main() -> None:
    """Plan Llama 2 7B on eight A100 with two choices, and compare the first two layouts part by part."""
    machine = rd.load_machine("dgx_a100")
    job = rd.load_job("llama2_7b_train")
    choices = {"tp": [1, 2, 4, 8], "micro_batch": [1, 2]}  # None instead of a list: all values there are
    best = rd.plan(job, machine, rd.Wanted(top=3, vary=choices))

    for row in best.rows:
        settings = {key: row.settings[key] for key in ("tp", "pp", "dp", "micro_batch", "zero_stage")}
        print(row.result.step_time, " ".join(f"{key}={value}" for key, value in settings.items()))

    first, second = (rd.simulate(row.job, machine) for row in best.rows[:2])
    print("the second layout spends more or less on")
    for part, spent in second.breakdown.items():
        added = spent - first.breakdown.get(part, 0)
        if abs(added) > 0.001 * first.step_time:
            print(f"  {part:8} {added / first.step_time:+.1%} of the step")


if __name__ == "__main__":
    main()
