"""Dashboard and alerts: `python -m e2e.monitoring build | generate [--check] | draw [--folder FOLDER]`."""

import argparse
import sys
from pathlib import Path

from e2e.cluster.binaries import ensure
from e2e.cluster.errors import ClusterError
from e2e.monitoring import draw, generate
from e2e.monitoring.prometheus import PROGRAMS


def main() -> int:
    """Exit status: 0, or 1 if --check found a file that is not up to date."""
    parser = argparse.ArgumentParser(prog="python -m e2e.monitoring")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="build Prometheus from its Go modules, once per version")
    writer = commands.add_parser(
        "generate", help="write the dashboard, and the alerts for chart and Prometheus operator"
    )
    writer.add_argument("--check", action="store_true", help="write nothing; exit 1 and name the files that are stale")
    painter = commands.add_parser("draw", help="play for some minutes, and draw the dashboard as it then looks")
    painter.add_argument(
        "--folder", type=Path, default=draw.IMAGES, help="of the pictures (default: the documentation's)"
    )
    options = parser.parse_args()
    if options.command == "generate":
        return _generate(check=options.check)
    if options.command == "build":
        ensure(PROGRAMS)
    else:
        print("\n".join(map(str, draw.pictures(options.folder))))
    return 0


def _generate(*, check: bool) -> int:
    found = generate.stale()
    for path, text in found.items():
        if check:
            sys.stderr.write(f"{path.relative_to(generate.ROOT)} is out of date: run `make generate` and commit it\n")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return int(check and bool(found))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ClusterError as error:
        sys.exit(f"error: {error}")
