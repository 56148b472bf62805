"""The options by which a model stands for a job that trains it."""

from __future__ import annotations

import click

from rapid_des.cli.options import together
from rapid_des.config import Document
from rapid_des.errors import ConfigError

model_options = together(
    click.option(
        "--tokens-per-batch",
        "tokens",
        metavar="4M",
        help="Tokens of a training step, where JOB is a model; K, M and G are powers of 1,024.",
    ),
    click.option(
        "--sequence",
        type=click.IntRange(1),
        metavar="TOKENS",
        help="Tokens of a sequence, where JOB is a model; unset: 4,096, or all that the model has positions "
        "for.",
    ),
)


def job_of(reference: str, tokens: str | None, sequence: int | None) -> str | Document:
    """Return the job that is named, or one that trains the model that is named."""
    from rapid_des.studies.model_jobs import names_model, parse_tokens, training_job

    if not names_model(reference):
        if tokens is not None or sequence is not None:
            option = "--tokens-per-batch" if tokens is not None else "--sequence"
            raise ConfigError(f"{reference} is not a model; a job states its batch itself", file=option)
        return reference
    if tokens is None:
        example = f"rapid-des plan {reference} --on MACHINE --tokens-per-batch 4M"
        raise ConfigError(f"{reference} is a model: say how many tokens a step has, as in `{example}`")
    return training_job(reference, parse_tokens(tokens), sequence)


def model_words(tokens: str | None, sequence: int | None) -> list[str]:
    """Return these options as words of a command line."""
    words = [] if tokens is None else ["--tokens-per-batch", tokens]
    return words if sequence is None else [*words, "--sequence", str(sequence)]


def given_job(reference: str, tokens: str | None, sequence: int | None) -> str | Document:
    """Return the job that is named, or where options of a model are given one that trains the model."""
    return reference if tokens is None and sequence is None else job_of(reference, tokens, sequence)
