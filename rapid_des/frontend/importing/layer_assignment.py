"""How Megatron-LM assigns layers to the stages of a pipeline and their chunks."""

from __future__ import annotations

from rapid_des.errors import ConfigError
from rapid_des.frontend.importing.shell import Arguments


def chunks_of(arguments: Arguments, pp: int) -> int:
    """Return the model chunks of a stage (virtual stages)."""
    virtual = arguments.count("num-virtual-stages-per-pipeline-rank", 0)
    if virtual:
        return virtual
    each = arguments.count("num-layers-per-virtual-pipeline-stage", 0)
    if not each:
        return 1
    placed = sum(arguments.given(f"account-for-{what}-in-pipeline-split") for what in ("embedding", "loss"))
    uneven = any(f"decoder-{end}-pipeline-num-layers" in arguments for end in ("first", "last"))
    chunks, rest = divmod(arguments.count("num-layers", least=1) + placed, pp * each)
    if rest and not uneven:
        problem = f"{each} do not divide what each of {pp} stages has of the layers"
        raise ConfigError(problem, file=arguments.file, key="--num-layers-per-virtual-pipeline-stage")
    return chunks + bool(rest)


def layers_of(arguments: Arguments, parts: int) -> str | list[int] | None:
    """Return the number of layers of each part; None: equal numbers."""
    embedding = arguments.given("account-for-embedding-in-pipeline-split")
    loss = arguments.given("account-for-loss-in-pipeline-split")
    total = arguments.count("num-layers")
    if parts > total + 2:
        problem = f"{total} layers are fewer than {parts} stages and chunks"
        raise ConfigError(problem, file=arguments.file, key="--num-layers")
    if embedding and loss:
        return "endpoints"
    if embedding or loss:
        each = (total + 1) // parts
        return [each - (embedding and part == 0) - (loss and part == parts - 1) for part in range(parts)]
    first = arguments.count("decoder-first-pipeline-num-layers", 0)
    last = arguments.count("decoder-last-pipeline-num-layers", 0)
    between = parts - bool(first) - bool(last)
    if not (first or last) or between < 1:
        return None
    rest = [(total - first - last) // between] * between
    return [first] * bool(first) + rest + [last] * bool(last)
