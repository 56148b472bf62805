"""An attack on the command line: good inputs of every kind, changed by a seeded attacker, and how each run ended.

    python -m validation.hostile.campaign [--inputs 100000] [--seed 0] [--jobs 2]

prints a line a kind: how many inputs ended with which exit code. Exit codes 0 (accepted), 2, 3 and 4 (refused
on purpose) are good; 1, a death by signal, a timeout, more than forty lines of error or a raw escape is a
defect: it is printed with its seed, and the command ends with 1. `--only KIND --seed SEED --inputs 1` runs one
again.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import multiprocessing
import multiprocessing.process
import random
import re
import resource
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import cast

from rapid_des.cli.main import main as rapid_des
from validation.hostile.notebooks import notebook, wrong_html
from validation.hostile.sample import Sample
from validation.hostile.samples import samples

SECONDS, WAITING = 10, 120
"""What one input may take: seconds of the processor, and of the clock, which other programs make longer."""
_CHUNK = 500
"""Inputs that a process takes before another one takes its place."""
_MEMORY = 2 << 30
"""Bytes that an input may take beyond what the programs themselves do."""
_GOOD = {"0", "2", "3", "4"}
_TOKEN = re.compile(r"[A-Za-z_][\w.-]*|[-+]?\d[\w.]*(?: [A-Za-z/]+)?|\"[^\"]*\"|'[^']*'")
_NUMBER = re.compile(r"(?<![\w.])[0-9]{1,9}(?![\w.])")
NEAR = ("0", "1", "2", "3", "4", "5", "7", "8", "16", "64", "100")
_NO_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:nan|inf|infinity)\b(?! band)", re.IGNORECASE)
_NO_NUMBER_STATED = re.compile(rb"nan|inf", re.IGNORECASE)
NASTY = (
    "nan", ".nan", ".inf", "-inf", "NaN", "Infinity", "-1", "0", "-0", "1e308", "1e999999999", "-1e-320", "1e-300",
    "1e20", "0.5", "2", "3", "9223372036854775807", "-9223372036854775808", "9223372036854775808", "18446744073709551616",
    "4294967296", "16777216", "16777217", "1000000", "9" * 22, "7" * 4301, "²", "１２", "--5", "+-3", "0x10", "010", "0-1", "1:30",
    "1_0", "1_", "1__0", "1e3", "", "null", "~", "true", "[]", "{}", "[0, 0]", "{a: 1}", "'x", '"x', "&a [*a]", "*a",
    "!!timestamp x", "!!python/object:os.system x", "\0", "\x1b[31m", "\x07", "\ufeff", "\u202e", "é", "😀", "../../x",
    "/dev/zero", "/dev/null", "/", "x" * 300, "9223372036854775807 ps", "9223372036854775807 B", "1e999999999 s", "1_ us", "１２ us",
    "-1 us", "0 s", "0 B/s", "1 B/s", "1e-9 GB/s", "999999 PB/s", "300 GB", "0.5x", "-2x", "1e308x", "x", "%s%n",
    "[" * 3000, "{" * 200, "a:" * 100, "dimension = x", "(1, 2, 3)", "gpu99999999999999999999", "#-1", "a>b",
    "1e400", "9" * 41, "1.2.3 foo", "2.5", "0.1", "1e-9", "10000000", "1000000000", "9223372036854775807 B/s", "1 ps",
    "$((", "A=$((A*A))", "${a:-", "'" * 99, "[1]*999999999", "9" * 18, "<script>x</script>", "1e6", "-9223372036854775809",
)  # fmt: skip
"""What stands in place of a value."""


@dataclass(frozen=True)
class Outcome:
    """How one run ended: an exit code, `timeout` or `memory`, and what is wrong with that."""

    code: str
    problem: str = ""


def inputs(kind: str, sample: Sample, seed: int) -> tuple[list[str], dict[str, bytes]]:
    """Return (arguments, files by name) of one attack: the same for the same kind and seed."""
    chance = random.Random(f"{kind}/{seed}")  # noqa: S311 - no secret
    files, arguments = dict(sample.files), list(sample.command)
    if sample.draw is not None:
        arguments += sample.draw(chance)
    elif sample.attacked is None:
        at = chance.choice([place for place in range(len(arguments)) if place not in sample.kept])
        arguments[at] = _text_attack(chance, arguments[at]).replace("\0", "")
    elif sample.binary:
        files[sample.attacked] = _binary_attack(chance, files[sample.attacked])
    else:
        changed = files[sample.attacked].decode()
        for _ in range(chance.randrange(1, 4) if sample.planted else 0):
            changed = _plant(chance, changed, sample)
        if not sample.planted or chance.random() < 0.2:
            changed = _text_attack(chance, changed)
        content = changed.encode("utf-8", "surrogatepass")
        files[sample.attacked] = _binary_attack(chance, content) if chance.random() < 0.1 else content
    return arguments, sample.packed(files)


def _text_attack(chance: random.Random, text: str) -> str:
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        text = chance.choice(_TEXT)(chance, text)
    return text


def _value(chance: random.Random, text: str) -> str:
    tokens = list(_TOKEN.finditer(text))
    if not tokens:
        return chance.choice(NASTY)
    numbers = [token for token in tokens if re.search(r"\d", token[0])]
    token = chance.choice(numbers if numbers and chance.random() < 0.6 else tokens)
    new = chance.choice(NASTY)
    if token[0][0] in "\"'" and chance.random() < 0.5:
        new = token[0][0] + new + token[0][0]
    return text[: token.start()] + new + text[token.end() :]


def _plant(chance: random.Random, text: str, sample: Sample) -> str:
    """Put a text in place of a name that may be anything; of any value if there is none, or once in five."""
    tokens = list(_TOKEN.finditer(text))
    free = [token for token in tokens if token[0].strip("\"'") in sample.names]
    token = chance.choice(free if free and chance.random() < 0.8 else tokens)
    quoted = json.dumps(chance.choice(sample.planted), ensure_ascii=chance.random() < 0.5)
    return text[: token.start()] + quoted + text[token.end() :]


def _swap(chance: random.Random, text: str) -> str:
    tokens = list(_TOKEN.finditer(text))
    if len(tokens) < 2:
        return text * 2
    one, other = sorted(chance.sample(tokens, 2), key=lambda token: token.start())
    between = text[one.end() : other.start()]
    return text[: one.start()] + other[0] + between + one[0] + text[other.end() :]


def _line(chance: random.Random, text: str) -> str:
    lines = text.split("\n")
    at = chance.randrange(len(lines))
    kind = chance.randrange(3)
    lines[at : at + 1] = [[], [lines[at]] * 2, [lines[at], chance.choice(NASTY)]][kind]
    return "\n".join(lines)


def _letter(chance: random.Random, text: str) -> str:
    at = chance.randrange(len(text) + 1)
    return text[:at] + chance.choice("0-9:[]{},&*!'\"\\\t\n#=x\x01é²") + text[at + chance.randrange(2) :]


def _cut(chance: random.Random, text: str) -> str:
    return text[: chance.randrange(len(text) + 1)]


def _near(chance: random.Random, text: str) -> str:
    """Put a small number in place of another one, which reaches further than what is refused at once."""
    numbers = list(_NUMBER.finditer(text))
    if not numbers:
        return text
    number = chance.choice(numbers)
    new = chance.choice((*NEAR, str(2 * int(number[0])), str(int(number[0]) // 2)))
    return text[: number.start()] + new + text[number.end() :]


_TEXT = (*(_value,) * 6, *(_near,) * 3, _swap, _line, _letter, _cut)


def _binary_attack(chance: random.Random, content: bytes) -> bytes:
    packed = content[:2] == b"\x1f\x8b" and chance.random() < 0.7
    changed = bytearray(gzip.decompress(content) if packed else content)
    for _ in range(chance.choice((1, 1, 2, 8))):
        at = chance.randrange(len(changed) + 1)
        kind = chance.randrange(5)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << chance.randrange(8)
        elif kind == 1 and at < len(changed):
            changed[at] = chance.choice((0, 1, 127, 128, 255))
        elif kind == 2:
            changed[at:at] = chance.choice((b"\xff" * 10, b"\0" * 5000, b"\x80" * 12, b"\x02\x08\x00" * 500))
        elif kind == 3:
            del changed[at : at + chance.randrange(1, 40)]
        else:
            del changed[at:]
    return gzip.compress(bytes(changed), mtime=0) if packed else bytes(changed)


def run(arguments: list[str], files: dict[str, bytes], seconds: float = SECONDS) -> Outcome:
    """Run the command line in this process on the files, in a folder of their own."""
    stated = b"\n".join((*files.values(), *(argument.encode("utf-8", "replace") for argument in arguments)))
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return _call([argument.replace("@", folder) for argument in arguments], seconds, stated)


def _call(arguments: list[str], seconds: float, stated: bytes) -> Outcome:
    _taken()
    before = _taken()
    out, err, code = io.StringIO(), io.StringIO(), "0"
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _alarm(seconds):
        try:
            (notebook if arguments[0] == "notebook" else rapid_des)(arguments)
        except SystemExit as leaving:
            code = str(leaving.code or 0)
        except _TimeoutError:
            return Outcome("timeout", f"more than {seconds:g} s of the processor, or {WAITING} s")
    wrong = wrong_html(out.getvalue()) if arguments[0] == "notebook" and code == "0" else ""
    return Outcome(code, wrong or _problem(code, out.getvalue(), err.getvalue(), stated, before))


def _problem(code: str, printed: str, shown: str, stated: bytes, before: int) -> str:
    """Return what is wrong with a command that printed this, and began with so many bytes held."""
    if any(sign in printed + shown for sign in ("\x1b", "\x07", "Traceback")):
        return f"a raw escape or a traceback: {shown[:300]!r}"
    if "out of memory" in shown or _taken() - before > _MEMORY:
        return f"more than {_MEMORY >> 20} MiB: {shown[:300]}"
    if "Warning" in shown:
        return f"a warning: {shown[:300]}"
    if code == "0" and _NO_NUMBER.search(printed) and not _NO_NUMBER_STATED.search(stated):
        return f"no number: {_NO_NUMBER.findall(printed)[:3]}"
    if len(shown.splitlines()) > 40:
        return f"{len(shown.splitlines())} lines of error"
    return "" if code in _GOOD else shown.strip()[-600:]


def _taken() -> int:
    """Return the bytes that this process has held at most since it was asked last."""
    status = Path("/proc/self/status").read_text()
    Path("/proc/self/clear_refs").write_text("5")
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


class _TimeoutError(BaseException):
    """The alarm; no `Exception`, which the command line would catch."""


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def ring(_signal: int, _frame: object) -> None:
        raise _TimeoutError

    timers = {signal.SIGPROF: (signal.ITIMER_PROF, seconds), signal.SIGALRM: (signal.ITIMER_REAL, WAITING)}
    before = {number: signal.signal(number, ring) for number in timers}
    for timer, length in timers.values():
        signal.setitimer(timer, length)
    try:
        yield
    finally:
        for timer, _ in timers.values():
            signal.setitimer(timer, 0)
        for number, action in before.items():
            signal.signal(number, action)


def _attack(tasks: list[tuple[str, int]], sending: Connection) -> None:
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + 2 * _MEMORY,) * 2)
    for kind, seed in tasks:
        sending.send((kind, seed, run(*inputs(kind, samples()[kind], seed))))


def _outcomes(tasks: list[tuple[str, int]], jobs: int) -> Iterator[tuple[str, int, Outcome]]:
    """Yield (kind, seed, outcome) of each task; a process that died gives its task that outcome."""
    context = multiprocessing.get_context("fork")
    waiting = [tasks[start : start + _CHUNK] for start in range(0, len(tasks), _CHUNK)]
    running: dict[Connection, tuple[multiprocessing.process.BaseProcess, list[tuple[str, int]]]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            receiving, sending = context.Pipe(duplex=False)
            process = context.Process(target=_attack, args=(waiting[0], sending))
            process.start()
            sending.close()
            running[receiving] = process, waiting.pop(0)
        for ready in cast(list[Connection], wait(list(running))):
            ended, left = running[ready]
            try:
                yield ready.recv()
                del left[0]
            except EOFError:
                ended.join()
                del running[ready]
                if left:
                    yield *left.pop(0), Outcome("death", f"the process ended with {ended.exitcode}")
                    waiting += [left] if left else []


def main() -> None:
    """Run the campaign that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=100_000, help="in all, over the kinds in turn")
    parser.add_argument("--seed", type=int, default=0, help="of the first input of each kind")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", action="append", help="kinds whose names begin so; repeatable")
    asked = parser.parse_args()
    kinds = [kind for kind in samples() if kind.startswith(tuple(asked.only or [""]))]
    tasks = [(kinds[n % len(kinds)], asked.seed + n // len(kinds)) for n in range(asked.inputs)]
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    bad = 0
    with contextlib.suppress(KeyboardInterrupt):  # what has run is counted then
        for kind, seed, outcome in _outcomes(tasks, asked.jobs):
            counts[kind][outcome.code] += 1
            if outcome.problem:
                bad += 1
                print(f"DEFECT {kind!r} seed {seed}: {outcome.code}: {outcome.problem}", flush=True)
    codes = sorted({code for counter in counts.values() for code in counter})
    print(f"{'kind':<18}" + "".join(f"{code:>9}" for code in codes))
    for kind, counter in counts.items():
        print(f"{kind:<18}" + "".join(f"{counter[code]:>9}" for code in codes))
    print(f"{'all':<18}" + "".join(f"{sum(c[code] for c in counts.values()):>9}" for code in codes))
    print(f"{bad} defects in {sum(sum(counter.values()) for counter in counts.values())} inputs")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
