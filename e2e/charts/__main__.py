"""Write what is generated from the charts: `python -m e2e.charts [--check]`."""

import argparse
import sys

from e2e.charts.generate import ROOT, stale


def main() -> int:
    """Exit status: 0, or 1 if --check found a file that is not up to date."""
    parser = argparse.ArgumentParser(prog="python -m e2e.charts", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 and name the files that are stale")
    check = parser.parse_args().check
    found = stale()
    for path, text in found.items():
        if check:
            sys.stderr.write(f"{path} is out of date: run `make generate` and commit it\n")
        else:
            (ROOT / path).write_text(text, encoding="utf-8")
    return int(check and bool(found))


if __name__ == "__main__":
    sys.exit(main())
