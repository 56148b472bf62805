"""A server, sized: how answers slow down as more requests come."""

import rapid_des as rd


def main() -> None:
    """Serve Llama 3.1 70B on eight H100 at rising rates, and say which of them keep the asked times."""
    job = rd.load_job("llama3_1_70b_serve")
    machine = rd.load_machine("dgx_h100")
    cache = rd.BoundedCache()  # iterations are priced once for all rates
    for rate in (2, 8, 32):
        served = rd.serve(job, machine, arrivals=f"poisson rate={rate}/s", requests=200, cache=cache)
        first = rd.seconds(sorted(served.ttft)[len(served) * 99 // 100])
        each = rd.seconds(sorted(served.tpot)[len(served) * 99 // 100])
        kept = "kept" if first < 1 and each < 0.05 else "not kept"
        times = f"99 % have the first token in {first:.2f} s, then one each {1000 * each:.1f} ms"
        print(f"{rate} requests/s: {times}: {kept}")


if __name__ == "__main__":
    main()
