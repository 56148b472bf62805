"""Calls of the command line inside the test's process: what a person types, and what comes back."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rapid_des.cli.main import main

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Answer:
    """Exit code and the two streams of one call."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def call(*arguments: object) -> Answer:
    """Run `rapid-des ARGUMENT…` as the installed command does."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as leaving:
            code = int(leaving.code or 0)
    return Answer(code, out.getvalue(), err.getvalue())


def refused(answer: Answer, *codes: int) -> str:
    """Return what stderr says, having checked that it is a refusal that a person can act on."""
    lines = answer.err.splitlines()
    assert answer.code in (codes or (2,)), answer
    assert 1 <= len(lines) <= 40, answer
    assert "Traceback" not in answer.err, answer
    assert "defect of rapid_des" not in answer.err, answer
    assert all(lines), answer
    return answer.err
