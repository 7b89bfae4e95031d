"""`kvloop simulate`: a grid of settings, replayed and labelled simulated."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from e2e.traces.docs import TRACE
from e2e.traces.synthetic import Traffic, requests, router_log
from e2e.traces.write import jsonl
from kvloop.advice.published import QWEN3_32B
from kvloop.cli.main import app


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)], catch_exceptions=False)


def rows(*arguments: str | Path) -> list[dict[str, Any]]:
    return list(csv.DictReader(io.StringIO(run(*arguments, "-o", "csv").stdout)))


def test_every_combination_and_no_reuse_at_all() -> None:
    found = rows("--trace", TRACE, "--ttl", "60,15", "--threshold", "0,1000,64")
    tried = [(float(row["ttlSeconds"]), int(row["thresholdTokens"])) for row in found]
    assert tried == [(0, 0), *((ttl, tokens) for ttl in (15, 60) for tokens in (0, 64, 1000))]
    assert found[0]["reused"] == "0"


def test_json_says_that_all_is_simulated_and_on_what() -> None:
    result = run(
        "--trace", TRACE, "--ttl", "30", "--threshold", "64", "--model", "glm-5-fp8", "--decode-pods", "2", "-o", "json"
    )
    found = json.loads(result.stdout)
    assert found["simulated"] is True
    assert found["system"]["model"] == "glm-5-fp8"
    assert found["system"]["decodeCapacityTokens"] == 2 * 340_000
    assert found["system"]["assumed"] == ["prefill times", "transfer times", "size of decode's KV cache"]
    assert found["results"][0]["firstTokenP50Ms"] < found["off"]["firstTokenP50Ms"]


def test_the_table_says_so_too() -> None:
    assert "SIMULATED; decode pods: 1 of 3,600,000 tokens" in run("--trace", TRACE).stdout


def test_a_log_brings_its_own_times(tmp_path: Path) -> None:
    made = requests(Traffic(conversations=200, between_seconds=5), seed=5)
    (tmp_path / "log").write_text(jsonl(router_log(made, QWEN3_32B, ttl=470, holdout=0.1, seed=1)))
    found = json.loads(
        run("--log", tmp_path / "log", "--decode-capacity", "1000000", "--ttl", "30", "-o", "json").stdout
    )
    assert found["system"]["assumed"] == []
    assert found["system"]["prefillSeconds"][1] == pytest.approx(QWEN3_32B.prefill.slope, rel=0.1)
    assert found["results"][0]["hitShare"] == pytest.approx(0.78, abs=0.06)


def test_less_memory_and_fewer_prefill_pods_cost() -> None:
    plenty, short = (
        rows("--trace", TRACE, "--ttl", "470", "--threshold", "64", *more)[1]
        for more in ((), ("--decode-capacity", "60000"))
    )
    assert int(short["displaced"]) > int(plenty["displaced"]) == 0
    assert int(short["pinnedTokensPeak"]) <= 30_000
    queued = rows("--trace", TRACE, "--ttl", "470", "--threshold", "64", "--prefill-pods", "1")[1]
    assert float(queued["firstTokenP95Ms"]) > float(plenty["firstTokenP95Ms"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--trace", TRACE, "--ttl", "x"), "--ttl: 'x' is no number above 0; write them as in --ttl 30,60,120"),
        (("--trace", TRACE, "--ttl", "30,,60"), "--ttl: '' is no number"),
        (("--trace", TRACE, "--ttl", "nan"), "--ttl: 'nan' is no number"),
        (("--trace", TRACE, "--threshold", "-1"), "--threshold: '-1' is no number"),
        (
            ("--trace", TRACE, "--ttl", ",".join(map(str, range(1, 500)))),
            "combinations of --ttl and --threshold are too many",
        ),
        ((), "name one file"),
        (("--trace", "no-such-file"), "cannot read no-such-file"),
    ],
)
def test_an_unusable_command_line_or_file(arguments: tuple[str | Path, ...], told: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert told in result.stderr


def test_the_plot_is_a_png_and_one_that_cannot_be_written_loses_no_result(tmp_path: Path) -> None:
    assert run("--trace", TRACE, "--plot", tmp_path / "a.png").exit_code == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    result = run("--trace", TRACE, "--plot", tmp_path / "none" / "a.png")
    assert result.exit_code == 2
    assert "SIMULATED" in result.stdout
