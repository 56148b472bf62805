"""A GPU that does not exist: what more bandwidth or more processors would bring."""

import rapid_des as rd


def main() -> None:
    """Change one part of an H100 at a time, and simulate training and decoding on each."""
    changes = {
        "H100": {},
        "memory 1.5 times as fast": {"hbm.bandwidth": "1.5x"},
        "a quarter more processors": {"sms": "1.25x"},  # peaks and on-chip rates follow
        "a cache twice as large": {"l2.capacity": "2x"},
    }
    trained, served = rd.load_job("llama2_7b_train"), rd.load_job("llama2_7b_inference")
    base: dict[str, float] = {}
    for name, settings in changes.items():
        machine = rd.load_machine("dgx_h100", device_settings=list(settings.items()))
        steps = {job.name: float(rd.simulate(job, machine).step_time) for job in (trained, served)}
        base = base or steps
        gains = ", ".join(f"{job} {base[job] / step:.2f} times as fast" for job, step in steps.items())
        print(f"{name:26} {gains}")


if __name__ == "__main__":
    main()
