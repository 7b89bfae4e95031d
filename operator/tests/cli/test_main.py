"""The command line as a whole."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from kvloop import __version__
from kvloop.cli.main import COMMANDS, app, command
from kvloop.cli.reference import PATH, page
from kvloop.engine import bundle


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)


def test_help_names_every_command() -> None:
    text = run("--help").stdout
    assert all(command in text for command in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    result = run(name, "-h")
    assert result.exit_code == 0
    assert "Usage" in result.stdout
    assert command(name).help.partition("\n")[0] == COMMANDS[name]


def test_a_misspelt_command_is_told_with_what_may_be_meant() -> None:
    result = run("stauts")
    assert result.exit_code == 2
    assert "Did you mean 'status'?" in result.stderr


@pytest.mark.parametrize("arguments", ["['--help']", "['version']"])
def test_what_a_command_does_not_need_is_not_waited_for(arguments: str) -> None:
    code = (
        f"import sys; from kvloop.cli.main import app; app({arguments}, standalone_mode=False);"
        "sys.exit(str(sorted({'kubernetes', 'aiohttp', 'httpx', 'jinja2', 'yaml', 'matplotlib'} & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603 (ours)
    assert done.stderr == "[]\n"


def test_options_of_render_are_all_explained() -> None:
    text = run("render", "--help").stdout
    for option in ("--filename", "--output", "--out", "--kind", "--namespace", "--router-image", "--pod-monitors"):
        assert option in text
    assert "Exit codes" in text


def test_the_page_on_commands_is_up_to_date() -> None:
    assert (Path(__file__).parents[3] / PATH).read_text() == page()


def test_version() -> None:
    assert run("version").stdout == f"{__version__}\n"


def test_crd_is_the_generated_one() -> None:
    text = run("crd").stdout
    assert text == (Path(__file__).parents[3] / "crds" / "kvloop.io_disaggregatedinferences.yaml").read_text()
    assert yaml.safe_load(text)["kind"] == "CustomResourceDefinition"


def test_plugin_writes_a_folder_from_which_vllm_finds_it(tmp_path: Path) -> None:
    result = run("plugin", "--out", tmp_path / "plugin")
    assert result.exit_code == 0
    written = {
        str(path.relative_to(tmp_path / "plugin")): path.read_text()
        for path in (tmp_path / "plugin").rglob("*")
        if path.is_file()
    }
    assert written == bundle.files()
    found = importlib.metadata.distributions(name="kvloop-engine", path=[str(tmp_path / "plugin")])
    entries = [entry for distribution in found for entry in distribution.entry_points]
    assert [(entry.group, entry.name) for entry in entries] == [("vllm.general_plugins", "kvloop")]


def test_plugin_says_where_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run("plugin", "--out", tmp_path / "file")
    assert result.exit_code == 2
    assert "cannot write" in result.stderr


@pytest.mark.parametrize("script", ["kvloop", "kubectl-kvloop"])
def test_both_scripts_are_installed(script: str) -> None:
    path = Path(sys.executable).with_name(script)
    answer = subprocess.run([path, "version"], capture_output=True, text=True, check=True)  # noqa: S603 (our own script)
    assert answer.stdout == f"{__version__}\n"
