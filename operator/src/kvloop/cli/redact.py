"""What may leave a cluster in a support archive: no secrets, no keys, and nothing that clients or models have said.

The value of an environment variable goes only if its name is known to be harmless. All other text is searched for what
looks like a secret, and logs for lines that may hold content; where in doubt it is left out.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from kvloop.kube.client import Body
from kvloop.plan.router import CONFIG_KEY

LEFT_OUT: Final = "[left out]"
LINE_LEFT_OUT: Final = "[a line that may hold content was left out]"

_TELLING: Final = (
    r"(?:(?:api|access|auth|private|secret|encryption)[-_]?keys?|token|secrets?|passw\w*|passphrase|credentials?"
    r"|authorization)"
)
_SECRET_NAME: Final = re.compile(_TELLING + "$", re.IGNORECASE)
_HARMLESS: Final = re.compile(
    r"(?:VLLM|KVLOOP|NIXL|FI|NCCL|UCX|CUDA|NVIDIA|TORCH|OMP|ENGINESIM)_[A-Z0-9_]+"
    r"|PYTHONPATH|PYTHONUNBUFFERED|XDG_CACHE_HOME|HF_HOME|HF_HUB_OFFLINE|LD_LIBRARY_PATH|TZ|LANG|LC_ALL"
)
"""Names of environment variables that hold no secrets, unless they say so themselves, as VLLM_API_KEY does."""
_SECRET_WORD: Final = re.compile("TOKEN|SECRET|PASS|KEY|CRED|AUTH")

_UNNAMED: Final = re.compile(
    r"(?<=://)[^/\s:@'\"]*:[^/\s@'\"]+(?=@)"  # user and password in a URL
    r"|(?<=bearer )[\w.~+/=-]+|(?<=basic )[\w+/=]{8,}"
    r"|\b(?:hf_|sk-|ghp_|glpat-|xox[a-z]-|AKIA|ASIA)[\w-]{8,}"  # tokens that say what they are
    r"|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"  # JSON web tokens
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[\s\S]*?-----END [A-Z ]*PRIVATE KEY-----|[\s\S]*)",
    re.IGNORECASE,
)
_NAMED: Final = re.compile(rf"([\w.-]*{_TELLING}['\"]?\s*[=:]\s*[\['\"]*)[^\s'\",;\]}}]+", re.IGNORECASE)
_CONTENT: Final = re.compile(
    r"prompts?['\"]?\s*[=:]|token_ids|['\"](?:content|messages|input|text|arguments|delta)['\"]\s*:|input_value"
    r"|received request|generated (?:response|text)|request \S+ details|\boutput['\"]?\s*[=:]",
    re.IGNORECASE,
)


def text(value: str) -> str:
    """Text without what looks like a secret."""
    return _NAMED.sub(rf"\1{LEFT_OUT}", _UNNAMED.sub(LEFT_OUT, value))


def log(value: str) -> str:
    """A log without secrets, and without lines that may hold content."""
    lines = (LINE_LEFT_OUT if _CONTENT.search(line) else line for line in text(value).splitlines())
    return "".join(f"{line}\n" for line in lines)


def body(value: Body) -> Body:
    """An object of the API server's, of any kind but Secret, without its secrets and without what only fills pages."""
    meta = {name: part for name, part in value["metadata"].items() if name != "managedFields"}
    found: Body = _redacted(value | {"metadata": meta})
    if value["kind"] == "ConfigMap" and "data" in value:
        found["data"] = {
            key: text(part) if key == CONFIG_KEY else f"[{len(part)} characters]" for key, part in value["data"].items()
        }
    return found


def _redacted(value: Any, name: str = "") -> Any:
    match value:
        case dict():
            if isinstance(value.get("name"), str) and isinstance(value.get("value"), str):
                return {**value, "value": _variable(value["name"], value["value"])}
            if name in {"annotations", "labels"}:
                return dict(_annotations(value))
            return {key: _redacted(inner, key) for key, inner in value.items()}
        case list():
            strings = all(isinstance(item, str) for item in value)
            return list(_arguments(value)) if strings else [_redacted(item) for item in value]
        case str():
            return text(value)
        case _:
            return value


def _variable(name: str, value: str) -> str:
    """Of an environment variable, or an HTTP header."""
    return text(value) if _HARMLESS.fullmatch(name) and not _SECRET_WORD.search(name) else LEFT_OUT


def _annotations(values: dict[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if name != "kubectl.kubernetes.io/last-applied-configuration":
            yield name, LEFT_OUT if _SECRET_NAME.search(name) else text(value)


def _arguments(values: list[str]) -> Iterator[str]:
    """A command line: secrets stand behind their flag, in the same word or in the next one."""
    before = ""
    for value in values:
        flag, equals, _ = value.partition("=")
        if before.startswith("-") and _SECRET_NAME.search(before):
            yield LEFT_OUT
        elif equals and flag.startswith("-") and _SECRET_NAME.search(flag):
            yield f"{flag}={LEFT_OUT}"
        else:
            yield text(value)
        before = value
