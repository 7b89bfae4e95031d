"""``python -m e2e.traces``: write the example trace, its plots, and what the documentation shows of them."""

from typing import Final

from e2e.traces.docs import PAGE, TRACE, example, output, page

IMAGES: Final = TRACE.parents[1] / "images"


def main() -> None:
    """Write them."""
    TRACE.parent.mkdir(exist_ok=True)
    IMAGES.mkdir(exist_ok=True)
    TRACE.write_text(example())
    trace = ["--trace", str(TRACE)]
    output(["advise", *trace, "--ttl", "470", "--threshold", "64", "--plot", str(IMAGES / "advise.png")])
    output(["simulate", *trace, "--plot", str(IMAGES / "simulate.png")])
    PAGE.write_text(page(PAGE.read_text()))


if __name__ == "__main__":
    main()
