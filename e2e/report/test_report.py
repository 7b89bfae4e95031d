"""The report's runs are repeatable, and its page is what its figures say."""

import json
import re
from dataclasses import replace
from pathlib import Path

from e2e.report import bed, plots
from e2e.report.__main__ import FOLDER
from e2e.report.bed import Run, Setup
from e2e.report.page import page
from e2e.report.scenarios import load

SMALL = replace(load(4000), conversations=2, turns=3, reply_tokens=20)


def first_tokens(run: Run) -> list[float]:
    return [turn.ttft_s for turn in sorted(run.turns, key=lambda turn: (turn.conversation, turn.number))]


def test_times_are_those_of_the_model_alone() -> None:
    """The load of the machine, and how long the programs take, do not show."""
    once, again, off = (bed.run(Setup(bidirectional=on), SMALL) for on in (True, True, False))
    assert first_tokens(once) == first_tokens(again)
    assert once.hit_percent > 90
    assert off.hit_percent == 0
    assert max(once.pinned) > 0
    assert once.wrong == off.wrong == 0
    # Prompt of about 4,200 tokens in a line: 39 ms + 26.9 us a token, then decode's first token in 12 ms.
    assert 0.15 < min(first_tokens(off)) < 0.2
    slower = sum(turn.ttft_s for turn in off.follow_ups)
    assert sum(turn.ttft_s for turn in once.follow_ups) < slower / 1.3


def test_the_page_is_what_the_figures_say() -> None:
    figures = json.loads((FOLDER / "figures.json").read_text())
    assert (FOLDER / "README.md").read_text() == page(figures)


def test_the_readme_shows_figures_of_the_report() -> None:
    readme, report = (FOLDER.parents[2] / "README.md").read_text(), (FOLDER / "README.md").read_text()
    rows = re.findall(r"([\d,]+) tokens.*\| ([\d,]+ ms) \| ([\d,]+ ms) \|$", readme, re.MULTILINE)
    assert len(rows) == 3
    for length, off, on in rows:
        assert re.search(rf"^\| {length} \|( \d+ \|)? {off} \| {on} \|", report, re.MULTILINE), length


def test_every_plot_is_drawn_from_the_figures(tmp_path: Path) -> None:
    plots.write(tmp_path, json.loads((FOLDER / "figures.json").read_text()))
    assert {each.name for each in tmp_path.iterdir()} == {each.name for each in FOLDER.glob("*.png")}
