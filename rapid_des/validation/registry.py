"""Where the topics come from: one provider module a family of measurements.

To add a family, write a module with a function

    def topics(data: DataFolder) -> Iterable[Topic]

and one line in `PROVIDERS`. The function reads its CSV files with `data.read("folder/file.csv")` (a list of
dicts of text; `[]` if the file is absent, which the report then lists), groups the rows by the topic they
belong to, and yields `Topic(name, rows)`, where `rows` is a function without arguments that makes the
predictions: it runs only if the topic is asked for. Each `Row` holds the case (from the column `case_id`, or
from a fixed table in the module), the measurement, the prediction, and the null model's (see `null`). A row
that the model does not represent gets `predicted=None` and the reason in `unsupported`; nothing is dropped in
silence. Rows that are known to be bad go to topics named `…/excluded-REASON`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence

from rapid_des.errors import InputError
from rapid_des.validation.folder import DataFolder
from rapid_des.validation.scoring import Topic

PROVIDERS: dict[str, str] = {
    "rapid_des.validation.operators_gemm": "operators/gemm",
    "rapid_des.validation.operators_moe": "operators/moe",
    "rapid_des.validation.operators_traffic": "operators/traffic",
    "rapid_des.validation.operators_attention": "operators/",
    "rapid_des.validation.operators_vector": "operators/",
    "rapid_des.validation.operators_learned": "operators/learned",
    "rapid_des.validation.collectives": "network/",
    "rapid_des.validation.network": "network/",
}
"""Module and what its topics' names start with: a provider is asked only if a wanted prefix may be its."""


def all_topics(data: DataFolder, prefixes: Sequence[str] = ()) -> Iterator[Topic]:
    """Yield the topics of the providers that may have a wanted prefix, in the table's order."""
    for module, own in PROVIDERS.items():
        if not prefixes or any(own.startswith(prefix) or prefix.startswith(own) for prefix in prefixes):
            yield from importlib.import_module(module).topics(data)


def select(topics: Sequence[Topic], prefixes: Sequence[str]) -> list[Topic]:
    """Return the topics whose name starts with one of the prefixes (all without any), sorted by name."""
    names = [topic.name for topic in topics]
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name in names):
            loaded = {"/".join(name.split("/")[:2]) for name in names}
            others = {own for own in PROVIDERS.values() if not any(name.startswith(own) for name in names)}
            raise InputError(f"no topic starts with {prefix!r}; topics: {', '.join(sorted(loaded | others))}")
    chosen = [topic for topic in topics if not prefixes or topic.name.startswith(tuple(prefixes))]
    return sorted(chosen, key=lambda topic: topic.name)
