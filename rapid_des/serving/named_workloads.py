"""Workloads with names: lengths, and arrivals where they are known, with the figures of public traces.

A shape is what reproduces published figures of a trace, not the trace itself: `trace file=…` takes that.

- `azure_code_2023`, `azure_conv_2023`: two services of Azure, an hour of 16 November 2023 (Patel et al.,
  "Splitwise", ISCA 2024; github.com/Azure/AzurePublicDataset, CC-BY): 8,819 and 19,366 requests.
- `azure_code_2024`, `azure_conv_2024`: a week of May 2024 (Stojkovic et al., "DynamoLLM", HPCA 2025; same
  place): 16,803,695 and 27,303,999 requests, the busiest hour 33 and 3.6 times as busy as the quietest.
- `burstgpt_conv`, `burstgpt_api`: ChatGPT by its page and by its API, 61 days (Wang et al., "BurstGPT", KDD
  2025; github.com/HPMLL/BurstGPT, CC-BY). Lognormal by their medians and 90th percentiles; the authors model
  arrivals as gamma, whose rate and burstiness differ by service: these are to be stated.

Of Azure's lengths medians, means and 99th percentiles are those of the released files; the 90th is chosen so
that the mean is met, and an eighth of the median stands for the shortest.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class NamedWorkload(Struct, frozen=True):
    """The texts of `--arrivals` (None: to be stated), `--prompt` and `--output`."""

    arrivals: str | None
    prompt: str
    output: str


WORKLOADS: Mapping[str, NamedWorkload] = {
    "azure_code_2023": NamedWorkload(
        "poisson rate=2.57/s",
        "quantiles low=184 p50=1469 p90=4850 p99=7436",
        "quantiles low=2 p50=13 p90=52 p99=249",
    ),
    "azure_conv_2023": NamedWorkload(
        "poisson rate=5.53/s",
        "quantiles low=128 p50=1020 p90=2230 p99=4142",
        "quantiles low=16 p50=129 p90=590 p99=601",
    ),
    "azure_code_2024": NamedWorkload(
        "diurnal rate=27.8/s swing=0.94 period=24h",
        "quantiles low=241 p50=1930 p90=5900 p99=7685",
        "quantiles low=1 p50=8 p90=38 p99=271",
    ),
    "azure_conv_2024": NamedWorkload(
        "diurnal rate=45.1/s swing=0.565 period=24h",
        "quantiles low=116 p50=928 p90=4300 p99=6683",
        "quantiles low=5 p50=41 p90=270 p99=694",
    ),
    "burstgpt_conv": NamedWorkload(
        None, "lognormal mean=768 cv=1.25 most=31400", "lognormal mean=287 cv=0.758 most=12500"
    ),
    "burstgpt_api": NamedWorkload(
        None, "lognormal mean=1082 cv=4.86 most=31400", "lognormal mean=85 cv=3.11 most=12500"
    ),
}
