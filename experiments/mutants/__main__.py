"""`python -m experiments.mutants`: apply each mutant, and see that its tests notice it."""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from experiments.mutants.kept import Mutant, mutants, troubles
from experiments.mutants.trial import Tree, named

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Run what is asked for; 0 only if the list is up to date and no mutant survives."""
    options = _options()
    listed = mutants()
    if stale := troubles(listed, ROOT):
        sys.exit("The list of mutants is stale:\n" + "\n".join(stale))
    wanted = [m for m in listed if not options.only or m.id in options.only.split(",")]
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees = [
            Tree.copy(ROOT, Path(folder) / f"{number:02}", options.marks)
            for number in range(options.workers)
        ]
        code, said = trees[0].test(named(wanted), "-n", str(options.workers))
        if code:
            sys.exit(f"The tests do not pass without a mutant:\n{said}")
        survivors = _try_all(wanted, trees)
    print(f"{len(wanted)} mutants, {survivors} survive, {time.monotonic() - began_s:.0f} s")
    return 1 if survivors or not wanted else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.mutants", description="Try every mutant of the kept list."
    )
    parser.add_argument("--only", default="", help="ids, separated by commas")
    parser.add_argument("--marks", default="", help="the set of tests that must notice a mutant")
    parser.add_argument("--workers", type=int, default=2, help="mutants tried at a time")
    return parser.parse_args()


def _try_all(wanted: Sequence[Mutant], trees: Sequence[Tree]) -> int:
    """Try each mutant in one of the trees, print what becomes of it; return how many survive."""
    free = SimpleQueue[Tree]()
    for tree in trees:
        free.put(tree)

    def attempt(mutant: Mutant) -> bool:
        tree, began_s = free.get(), time.monotonic()
        try:
            trouble = tree.survives(mutant)
        finally:
            free.put(tree)
        took = f"{time.monotonic() - began_s:5.1f} s"
        print(f"{mutant.id:5}{took}  {trouble or 'killed'}: {mutant.promise}", flush=True)
        return bool(trouble)

    with ThreadPoolExecutor(len(trees)) as pool:
        return sum(pool.map(attempt, wanted))


if __name__ == "__main__":
    sys.exit(main())
