"""``python -m e2e.bench [part] [options of the part]``; every part without a name."""

import sys
from collections.abc import Callable, Sequence

from e2e.bench.controller import main as operator
from e2e.bench.guard import main as guard
from e2e.bench.router.run import main as router

PARTS: dict[str, Callable[[Sequence[str]], None]] = {"guard": guard, "router": router, "operator": operator}


def main(arguments: Sequence[str]) -> None:
    """Run the part that is named, or all."""
    name, *rest = arguments or [""]
    if name in PARTS:
        PARTS[name](rest)
    elif name:
        sys.exit(f"no part {name!r}: there are {', '.join(PARTS)}")
    else:
        for part in PARTS.values():
            part([])


if __name__ == "__main__":
    main(sys.argv[1:])
