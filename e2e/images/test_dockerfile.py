import re
import tomllib
from pathlib import Path

import pytest

from e2e.images.builder import Name
from e2e.images.dockerfile import image_config

REPOSITORY = Path(__file__).parents[2]
DOCKERFILE = REPOSITORY / "operator" / "Dockerfile"


def test_a_stage_inherits_and_overrides(tmp_path: Path) -> None:
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text(
        "ARG BASE=scratch\n"
        "FROM ${BASE} AS base\n"
        'ARG VERSION=dev\nENV A=1 B="two words"\nLABEL version="${VERSION}" \\\n'
        "  # a comment amid an instruction\n"
        "  kind=base\nUSER 1\n"
        "RUN true && \\\n  USER 3\n"
        'FROM base AS top\nLABEL kind=top\nENTRYPOINT ["a", "b"]\nWORKDIR /top\n'
    )
    base = {"Env": ["A=1", "B=two words"], "Labels": {"version": "dev", "kind": "base"}, "User": "1"}
    assert image_config(dockerfile, "base", {}) == base
    assert image_config(dockerfile, "top", {"VERSION": "1.2"}) == {
        "Env": ["A=1", "B=two words"],
        "Labels": {"version": "1.2", "kind": "top"},
        "User": "1",
        "Entrypoint": ["a", "b"],
        "WorkingDir": "/top",
    }


@pytest.mark.parametrize("name", Name)
def test_an_image_runs_one_command_as_nobody(name: Name) -> None:
    config = image_config(DOCKERFILE, name, {"VERSION": "1.2"})
    assert config["User"] == "65532:65532"
    assert config["Labels"]["org.opencontainers.image.title"] == f"kvloop-{name}"
    assert config["Labels"]["org.opencontainers.image.version"] == "1.2"
    scripts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    assert config["Entrypoint"] == (["vllm", "serve"] if name is Name.ENGINESIM else [f"kvloop-{name}"])
    assert name is Name.ENGINESIM or f"kvloop-{name}" in scripts


def test_the_build_context_holds_what_the_dockerfile_copies_and_nothing_else() -> None:
    allowed = re.findall(r"(?m)^!(.*)$", (REPOSITORY / ".dockerignore").read_text())
    copied = [
        source
        for arguments in re.findall(r"(?m)^COPY (?!--from)(.*)$", DOCKERFILE.read_text())
        for source in arguments.removeprefix("--chmod=0755 ").split()[:-1]
    ]
    assert sorted(copied) == sorted(allowed)
    assert not [source for source in copied if not (REPOSITORY / source).exists()]
