"""A fabric study: one job on machines that differ in their network alone."""

import rapid_des as rd


def main() -> None:
    """Simulate Llama 3.1 70B on 64 GPUs with other rails between nodes and other NVLink in them."""
    job = rd.load_job("llama3_1_70b_train_64")
    fabrics = {
        "as it ships": {},
        "rails at half the rate": {"fabric.1.bandwidth": "25 GB/s"},
        "rails at twice the rate": {"fabric.1.bandwidth": "100 GB/s", "fabric.1.nic.bandwidth": "126 GB/s"},
        "NVLink at half the rate": {"fabric.0.bandwidth": "225 GB/s"},
    }
    cache = rd.BoundedCache()  # keeps what these runs have in common
    base = None
    for name, settings in fabrics.items():
        machine = rd.load_machine("dgx_h100_x8", settings=settings)
        step = rd.simulate(job, machine, mode="hierarchical", cache=cache).step_time
        base = base or step
        print(f"{name:26} {step}  {step / base - 1:+.2%}")

    # What a collective alone takes on the shipped machine, beside its lower bound.
    machine = rd.load_machine("dgx_h100_x8")
    for row in rd.bench(machine, "all_reduce", [2**20, 2**28]):
        time = rd.Duration(row.duration)
        print(f"all-reduce of {row.size:,} B: {time}, {row.bound_share:.0%} of what is possible")


if __name__ == "__main__":
    main()
