"""`kvloop render`: a user's files in, children or a clear error out."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from kvloop.cli.main import app

CASES = Path(__file__).parents[1] / "cases"
SMALL = CASES / "small" / "in.yaml"


def run(*arguments: str | Path, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ["render", *map(str, arguments)], input=stdin, catch_exceptions=False)


def edited(tmp_path: Path, **spec: Any) -> Path:
    body = yaml.safe_load(SMALL.read_text())
    body["spec"] |= spec
    path = tmp_path / "edited.yaml"
    path.write_text(yaml.safe_dump(body))
    return path


def test_children_are_printed_as_yaml_documents() -> None:
    result = run("-f", SMALL)
    assert result.exit_code == 0
    children = list(yaml.safe_load_all(result.stdout))
    assert {child["kind"] for child in children} >= {"StatefulSet", "Deployment", "Service", "ConfigMap", "Role"}
    assert result.stderr == ""


def test_yaml_reads_as_people_write_it() -> None:
    text = run("-f", SMALL, "--kind", "ConfigMap").stdout
    assert "router.yaml: |" in text
    assert "&id" not in text


def test_json_is_a_list_or_the_one_child() -> None:
    several = json.loads(run("-f", SMALL, "-o", "json").stdout)
    assert several["kind"] == "List"
    assert len(several["items"]) > 10
    one = json.loads(run("-f", SMALL, "-o", "json", "--kind", "deployment").stdout)
    assert one["kind"] == "Deployment"


def test_kinds_may_be_chosen_and_a_wrong_one_is_told() -> None:
    kinds = [
        child["kind"]
        for child in yaml.safe_load_all(run("-f", SMALL, "--kind", "statefulset", "--kind", "Role").stdout)
    ]
    assert kinds == ["Role", "StatefulSet", "StatefulSet"]
    wrong = run("-f", SMALL, "--kind", "DaemonSet")
    assert wrong.exit_code == 2
    assert "DaemonSet" in wrong.stderr
    assert "StatefulSet" in wrong.stderr


def test_standard_input() -> None:
    result = run("-f", "-", "--kind", "Deployment", stdin=SMALL.read_text())
    assert yaml.safe_load(result.stdout)["metadata"]["name"] == "small-router"


def test_several_files_documents_and_lists(tmp_path: Path) -> None:
    bodies = list(yaml.safe_load_all((CASES / "crs" / "valid.yaml").read_text()))
    path = tmp_path / "list.yaml"
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": bodies[:2]}))
    result = run("-f", path, "-f", CASES / "fleet" / "in.yaml", "--kind", "Deployment")
    names = [child["metadata"]["name"] for child in yaml.safe_load_all(result.stdout)]
    assert names == ["qwen3-32b-router", "small-router", "fleet-router"]


def test_files_are_written_one_a_child(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    result = run("-f", SMALL, "--out", out)
    assert result.exit_code == 0
    written = sorted(path.name for path in out.iterdir())
    assert sorted(Path(line).name for line in result.stdout.splitlines()) == written
    assert "statefulset-small-prefill.yaml" in written
    assert yaml.safe_load((out / "deployment-small-router.yaml").read_text())["kind"] == "Deployment"


def test_namesakes_do_not_overwrite_each_other(tmp_path: Path) -> None:
    elsewhere = yaml.safe_load(SMALL.read_text())
    elsewhere["metadata"]["namespace"] = "elsewhere"
    (tmp_path / "elsewhere.yaml").write_text(yaml.safe_dump(elsewhere))
    result = run("-f", SMALL, "-f", tmp_path / "elsewhere.yaml", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "twice" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "child"), [("small-prefill", "Service small-prefill"), ("small", "small-router")], ids=["child", "same"]
)
def test_resources_whose_children_would_have_one_name_are_refused(tmp_path: Path, name: str, child: str) -> None:
    other = yaml.safe_load(SMALL.read_text())
    other["metadata"]["name"] = name
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(other))
    result = run("-f", SMALL, "-f", tmp_path / "other.yaml")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert f"{child} would be a child of {SMALL}, document 1 (DisaggregatedInference small), too" in result.stderr


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run("-f", SMALL, "--out", tmp_path / "file")
    assert result.exit_code == 2
    assert "cannot write" in result.stderr


def test_the_namespace_is_the_files_or_else_the_given_one(tmp_path: Path) -> None:
    one = yaml.safe_load(run("-f", SMALL, "-n", "prod", "--kind", "Deployment").stdout)
    assert one["metadata"]["namespace"] == "prod"
    own = yaml.safe_load(run("-f", CASES / "locked-down" / "in.yaml", "-n", "prod", "--kind", "Role").stdout)
    assert own["metadata"]["namespace"] == "serving"


def test_settings_of_the_operator() -> None:
    result = run("-f", SMALL, "--router-image", "own:1", "--pod-monitors")
    children = list(yaml.safe_load_all(result.stdout))
    assert [child for child in children if child["kind"] == "PodMonitor"]
    [router] = [child for child in children if child["kind"] == "Deployment"]
    assert router["spec"]["template"]["spec"]["containers"][0]["image"] == "own:1"
    assert all("ownerReferences" not in child["metadata"] for child in children)


def test_a_refused_resource_is_told_by_file_document_and_field(tmp_path: Path) -> None:
    path = edited(tmp_path, transfer={"fabric": "UCX", "decoderKVBlocksTTLSeconds": 5})
    result = run("-f", SMALL, "-f", path)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert f"{path}, document 1 (DisaggregatedInference small)" in result.stderr
    assert "spec.transfer.decoderKVBlocksTTLSeconds" in result.stderr


def test_every_refused_resource_is_told(tmp_path: Path) -> None:
    path = edited(tmp_path, transfer={"fabric": "Push"}, router={"port": 0})
    text = run("-f", path, "-f", path).stderr
    assert text.count("spec.transfer.fabric") == 2
    assert text.count("spec.router.port") == 2


def test_a_misspelt_field_is_told(tmp_path: Path) -> None:
    result = run("-f", edited(tmp_path, transfer={"fabric": "UCX", "ttl": 5}))
    assert result.exit_code == 1
    assert 'unknown field "spec.transfer.ttl"' in result.stderr


def test_other_kinds_are_passed_over_aloud() -> None:
    text = SMALL.read_text() + "\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: prod}\n---\n"
    result = run("-f", "-", "--kind", "Deployment", stdin=text)
    assert result.exit_code == 0
    assert result.stderr == "passed over: standard input, document 2 (Namespace prod)\n"


def test_a_misspelt_kind_of_our_group_is_an_error() -> None:
    result = run("-f", "-", stdin=SMALL.read_text().replace("DisaggregatedInference", "DisagregatedInference"))
    assert result.exit_code == 1
    assert "kind" in result.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no DisaggregatedInference in -"),
        ("apiVersion: v1\nkind: Namespace\n", "no DisaggregatedInference"),
        ("a: [", "standard input is no valid YAML"),
        ("- a\n- b\n", "standard input, document 1 is no Kubernetes object but list"),
        ("text", "no Kubernetes object but str"),
        ("a: !!python/object:os.system {}", "no valid YAML"),
        ("a: 1\n\tb: 2\n", "standard input is no valid YAML: line 2: found character"),
        ("a: \x01\n", "no valid YAML: unacceptable character #x0001"),
        ("a: 1\nb: {c: 1, d: 2, c: 3}\n", "no valid YAML: line 2: c is there twice"),
        ("[" * 5000, "nested deeper than 100 levels"),
        ("&a {kind: x, spec: *a}", "an alias contains itself"),
        ("a0: &a0 [1, 1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40)), "multiply"),
    ],
)
def test_unusable_input_is_told(text: str, says: str) -> None:
    result = run("-f", "-", stdin=text)
    assert result.exit_code == 2
    assert says in result.stderr
    assert len([line for line in result.stderr.splitlines() if line.startswith("error:")]) == 1
    assert result.stdout == ""


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    result = run("-f", tmp_path / "none.yaml")
    assert result.exit_code == 2
    assert "cannot read" in result.stderr
    assert "No such file" in result.stderr


def test_a_file_that_is_no_text_is_told(tmp_path: Path) -> None:
    path = tmp_path / "binary"
    path.write_bytes(b"a: \xff\xfe")
    result = run("-f", path)
    assert result.exit_code == 2
    assert "UTF-8" in result.stderr


def test_a_file_must_be_given() -> None:
    result = CliRunner().invoke(app, ["render"])
    assert result.exit_code == 2
    assert "--filename" in result.stderr


def test_a_long_value_is_not_quoted_in_full(tmp_path: Path) -> None:
    body = yaml.safe_load(SMALL.read_text())
    body["spec"]["engine"]["args"] = [f"--argument-{number}=1" for number in range(5000)]
    result = run("-f", "-", stdin=yaml.safe_dump(body))
    assert result.exit_code == 1
    assert "spec.engine.args: ['--argument-0=1'" in result.stderr
    assert result.stderr.endswith("is too long\n")
    assert len(result.stderr) < 500


def test_a_namespace_that_cannot_be_is_refused() -> None:
    result = run("-f", SMALL, "-n", "A b")
    assert result.exit_code == 2
    assert "--namespace A b: must be lower case letters" in result.stderr


def test_y_and_n_are_no_text_to_kubectl() -> None:
    text = SMALL.read_text()
    assert run("-f", "-", stdin=text.replace("image: ", "image: y #")).exit_code == 1
    body = yaml.safe_load(text)
    body["spec"]["engine"]["env"] = [{"name": "A", "value": "y"}, {"name": "B", "value": "N"}]
    printed = run("-f", "-", stdin=json.dumps(body)).stdout
    assert "value: 'y'" in printed
    assert "value: 'N'" in printed


def test_a_status_is_passed_over_as_the_api_server_does() -> None:
    body = yaml.safe_load(SMALL.read_text()) | {"status": "x"}
    assert run("-f", "-", stdin=json.dumps(body)).exit_code == 0


@pytest.mark.parametrize(
    "metadata",
    [
        "text",
        {"name": 5},
        {"name": "x", "namespace": 7},
        {"name": "x", "namespace": "A b"},
        {"name": "x", "labels": {"a": 1}},
        {"name": "x", "annotations": ["a"]},
        None,
    ],
)
def test_strange_metadata_is_refused(metadata: Any) -> None:
    body = yaml.safe_load(SMALL.read_text()) | {"metadata": metadata}
    result = run("-f", "-", stdin=yaml.safe_dump(body))
    assert result.exit_code == 1
    assert "metadata" in result.stderr
