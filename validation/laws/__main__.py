"""Laws that hold whatever the right number is, on drawn jobs, machines and faults.

    python -m validation.laws [--draws 1000] [--seed 0] [--law NAME] [--json]

draws cases until so many have run and checks every law on each. It prints how often each law held, did not
apply (and why) or was broken, and every broken one with its case; the command then ends with 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence

from validation.laws.campaign import Found, campaign
from validation.laws.checks import LAWS


def _told(found: Found) -> None:
    print(f"{found.law}, seed {found.case.seed}: {found.problem}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1000, help="how many cases run")
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--law", action="append", choices=LAWS, help="check this one; may be repeated")
    parser.add_argument("--json", action="store_true", help="print counts and broken laws as JSON")
    wanted = parser.parse_args(arguments)
    counts: Counter[tuple[str, str]] = Counter()
    broken = list(campaign(wanted.draws, wanted.seed, wanted.law or list(LAWS), counts))
    if wanted.json:
        plain = [{"law": each.law, "problem": each.problem, **each.case.as_json()} for each in broken]
        rows = [{"law": law, "outcome": how, "cases": number} for (law, how), number in counts.items()]
        print(json.dumps({"counts": rows, "broken": plain}))
    else:
        for (law, how), number in sorted(counts.items()):
            print(f"{number:6,}  {law:12} {how}")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
