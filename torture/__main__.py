"""Usage: python -m torture [--share 0.05] [--only kill] [--seed 0].

Prints a table of what was attacked how often, and every failure. The exit code is 1 where there is one.
"""

import argparse
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from torture import stops
from torture.files import damage_audits, damage_checkpoints, fill_disks, race
from torture.forked import import_everything
from torture.workplace import Outcome, make_workplace

Attack = Callable[[Path, int, random.Random], Outcome]
# How often each is tried in full.
ATTACKS: dict[str, tuple[Attack, int]] = {
    **stops.ATTACKS,
    "damage": (damage_checkpoints, 2000),
    "damage-audit": (damage_audits, 2000),
    "disk": (fill_disks, 200),
    "race": (race, 200),
}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m torture", description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the full counts (default: all)")
    parser.add_argument("--only", default="", help="attacks whose name has this in it")
    parser.add_argument("--without", default="", help="names of attacks, with commas between")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # PEFT's and transformers', of mutated files
    import_everything()
    failures = 0
    print(f"{'attack':46}{'attempts':>9}{'failures':>9}{'seconds':>9}")
    for name, (attack, full) in ATTACKS.items():
        if given.only not in name or name in given.without.split(","):
            continue
        with tempfile.TemporaryDirectory(prefix="torture-") as folder:
            started = time.monotonic()
            rng = random.Random(f"{given.seed} {name}")
            outcome = attack(make_workplace(Path(folder)), max(1, round(full * given.share)), rng)
        notes = "".join(f"  {note}: {count}" for note, count in sorted(outcome.notes.items()))
        seconds = time.monotonic() - started
        print(f"{outcome.attack:46}{outcome.attempts:9,}{len(outcome.failures):9,}{seconds:9.0f}{notes}", flush=True)
        for failure in sorted(set(outcome.failures))[:20]:
            print(f"  {failure}", flush=True)
        failures += len(outcome.failures)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
