"""`kvloop advise`: from files to advice, for people and for programs."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from e2e.traces.docs import PAGE, TRACE, example, page
from e2e.traces.synthetic import Traffic, bailian, best_ttl, mooncake, requests, router_log
from e2e.traces.write import jsonl
from kvloop.advice.published import MODELS, QWEN3_32B
from kvloop.cli.main import app
from kvloop.cli.traffic import ModelName

SLOW = Traffic(conversations=500, between_seconds=300)
"""So little at once that decode's memory is idle."""
HOLD = 80.0
"""Seconds for which holding a turn is made to pay, with so little memory."""


def run(command: str, *arguments: str | Path, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, [command, *map(str, arguments)], input=stdin, catch_exceptions=False)


def capacity() -> int:
    """KV cache with which an idle decode pod's memory is worth holding for `HOLD` seconds, on average."""
    made = requests(SLOW, seed=1)
    tokens = sum(each.prompt + each.output for each in made) / len(made)
    saved = (QWEN3_32B.prefill.slope - QWEN3_32B.transfer.slope) * tokens - QWEN3_32B.transfer.intercept
    return round(0.02 * tokens * HOLD / saved)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, made = tmp_path_factory.mktemp("traces"), requests(SLOW, seed=1)
    texts = {
        "mooncake": jsonl(mooncake(made)),
        "bailian": jsonl(bailian(made)),
        "log": jsonl(router_log(made, QWEN3_32B, ttl=470, holdout=0.1, seed=1)),
        "thirty": jsonl(mooncake(made[:30])),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    return {name: folder / name for name in texts}


@pytest.mark.parametrize("kind", ["mooncake", "bailian", "log"])
def test_the_ttl_is_within_a_fifth_of_the_best(kind: str, files: dict[str, Path]) -> None:
    option = "--log" if kind == "log" else "--trace"
    result = run("advise", option, files[kind], "--decode-capacity", str(capacity()), "-o", "json")
    advice = json.loads(result.stdout)["advice"]
    assert result.exit_code == 0
    best = best_ttl(SLOW.gap_seconds, SLOW.ended, HOLD)
    assert advice["router.leaseSeconds"]["value"] == pytest.approx(best, rel=0.2)
    assert advice["router.leaseSeconds"]["confident"] == (kind == "log")


def test_a_log_tells_lines_threshold_and_what_the_holdout_shows(files: dict[str, Path]) -> None:
    found = json.loads(run("advise", "--log", files["log"], "--decode-capacity", "1000000", "-o", "json").stdout)
    assert found["source"]["assumed"] is None
    assert found["evidence"]["prefill"]["secondsPerToken"] == pytest.approx(QWEN3_32B.prefill.slope, rel=0.1)
    low, high = found["breakEvenTokens"]
    assert low <= 720 <= high
    assert found["advice"]["transfer.bidirectional"]["value"] is True
    assert "against the holdout" in found["advice"]["transfer.bidirectional"]["reason"]
    assert found["advice"]["router.holdoutPercent"]["value"] == 10
    assert "shows within" in found["advice"]["router.holdoutPercent"]["reason"]


def test_a_log_tells_when_prefill_has_it_all_in_its_own_cache(tmp_path: Path) -> None:
    made = requests(Traffic(conversations=200, between_seconds=5), seed=5)
    rows = list(router_log(made, QWEN3_32B, ttl=0, holdout=0, seed=1))
    for row in rows:
        if row["turn"] > 1:
            row |= {"computedTokens": 200, "legMs": 1000 * QWEN3_32B.prefill.at(200)}
    (tmp_path / "log").write_text(jsonl(rows))
    found = json.loads(run("advise", "--log", tmp_path / "log", "--model", "qwen3-32b", "-o", "json").stdout)
    assert found["evidence"]["prefillCacheHitPercent"] > 90
    assert found["advice"]["transfer.bidirectional"]["value"] is False
    assert "its own prefix cache" in found["advice"]["transfer.bidirectional"]["reason"]


def test_a_log_alone_does_not_tell_the_size_of_memory(files: dict[str, Path]) -> None:
    found = json.loads(run("advise", "--log", files["log"], "-o", "json").stdout)
    assert found["advice"]["router.leaseSeconds"]["value"] is None
    assert "size of decode's KV cache" in found["advice"]["router.leaseSeconds"]["reason"]
    assert found["advice"]["transfer.kvRecomputeThresholdTokens"]["value"]
    helped = json.loads(run("advise", "--log", files["log"], "--model", "qwen3-32b", "-o", "json").stdout)
    assert helped["advice"]["router.leaseSeconds"]["value"]
    assert helped["source"]["assumed"] == {"model": "qwen3-32b", "what": ["size of decode's KV cache"]}


def test_thirty_turns_tell_nothing(files: dict[str, Path]) -> None:
    result = run("advise", "--trace", files["thirty"])
    assert "Cannot tell yet" in result.stdout
    assert "300 are needed" in " ".join(result.stdout.split())


def test_nothing_at_all_to_say_has_an_exit_code_of_its_own(files: dict[str, Path], tmp_path: Path) -> None:
    few = tmp_path / "few.log"
    few.write_text("".join(files["log"].read_text().splitlines(keepends=True)[:5]))
    result = run("advise", "--log", few)
    assert result.exit_code == 1
    assert result.stdout.count("no advice") == 4


def test_values_in_force_stand_beside_the_advice(files: dict[str, Path]) -> None:
    in_force = ("--ttl", "470", "--threshold", "64", "--holdout", "5")
    text = run("advise", "--trace", files["mooncake"], *in_force).stdout
    assert "router.leaseSeconds: 470 in force, " in text
    assert "transfer.kvRecomputeThresholdTokens: 64 in force, 720 advised, not sure" in text
    assert "router.holdoutPercent: 5 in force, no advice" in text
    assert "Assumed, as published of qwen3-32b" in text


def test_standard_input_and_bad_lines(files: dict[str, Path]) -> None:
    result = run("advise", "--trace", "-", stdin=files["mooncake"].read_text() + "{\n")
    assert result.exit_code == 0
    assert "warning: standard input, line" in result.stderr
    assert "standard input (Mooncake trace)" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "name one file"),
        (("--log", "a", "--trace", "b"), "name one file"),
        (("--trace", "no-such-file"), "cannot read no-such-file: No such file or directory"),
        (("--log", __file__), "has no line of it; wanted is the router's access log"),
    ],
)
def test_an_unusable_command_line_or_file(arguments: tuple[str, ...], told: str) -> None:
    result = run("advise", *arguments)
    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stdout == ""


def test_the_plot_is_a_png_and_a_folder_that_is_none_loses_no_advice(files: dict[str, Path], tmp_path: Path) -> None:
    for name in ("mooncake", "thirty"):
        assert run("advise", "--trace", files[name], "--plot", tmp_path / f"{name}.png").exit_code == 0
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    result = run("advise", "--trace", files["mooncake"], "--plot", tmp_path / "none" / "a.png")
    assert result.exit_code == 2
    assert "cannot write" in result.stderr
    assert "router.leaseSeconds" in result.stdout


def test_a_log_without_times_has_a_plot_too(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"time": 1.0, "status": 200, "arm": "first", "promptTokens": 5}]
    (tmp_path / "log").write_text(jsonl(rows))
    assert run("advise", "--log", tmp_path / "log", "--plot", tmp_path / "a.png").exit_code == 1
    assert (tmp_path / "a.png").exists()


def test_models_are_the_published_ones() -> None:
    assert sorted(ModelName) == sorted(MODELS)


def test_the_example_trace_and_what_the_documentation_shows_are_up_to_date() -> None:
    """To write them anew: `python -m e2e.traces`."""
    assert TRACE.read_text() == example()
    assert PAGE.read_text() == page(PAGE.read_text())
    assert PAGE.read_text().count("$ kvloop ") >= 2
