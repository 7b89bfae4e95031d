"""Nothing that is secret, and nothing that was said, leaves a cluster."""

from typing import Any

import pytest

from kvloop.cli import redact

S = "Canary0123456789"
"""A secret; in no text that comes out."""


@pytest.mark.parametrize(
    "line",
    [
        f"connecting to redis://user:{S}@valkey:6379/0",
        f"Authorization: Bearer {S}",
        f"authorization: Basic {S}",
        f"api_key={S}",
        f"non-default args: {{'api_key': ['{S}'], 'model': 'm'}}",
        f'{{"password": "{S}"}}',
        f"HF_TOKEN={S} vllm serve",
        f"x-api-key: {S}",
        f"aws_secret_access_key = {S}",
        f"hf_{S} was not accepted",
        f"using sk-{S}",
        f"key id AKIA{S}",
        f"token eyJhbGciOi{S}.eyJzdWIiOiIx.{S}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{S}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{S}",
        f"--client-secret: {S}",
        f"passwd={S}; rest",
    ],
)
def test_secrets_are_taken_out_of_any_text(line: str) -> None:
    assert S not in redact.text(line)
    assert S not in redact.log(line)


@pytest.mark.parametrize(
    "line",
    [
        f"Received request chatcmpl-1: prompt: '{S}', params: SamplingParams(n=1)",
        f"Generated response chatcmpl-1: output: '{S}'",
        f"Request chatcmpl-1 details: prompt: '{S}', prompt_token_ids: [1, 2]",
        f"prompt_token_ids=[1, 2] {S}",
        f'{{"messages": [{{"role": "user", "content": "{S}"}}]}}',
        f"1 validation error: input_value={{'a': '{S}'}}",
        f"{{'text': '{S}'}}",
        f'"arguments": "{S}"',
        f"Prompt: {S}",
    ],
)
def test_lines_that_may_hold_content_are_left_out_of_logs(line: str) -> None:
    assert redact.log(f"before\n{line}\nafter") == f"before\n{redact.LINE_LEFT_OUT}\nafter\n"


@pytest.mark.parametrize(
    "line",
    [
        "Engine 000: Avg prompt throughput: 12.0 tokens/s, Avg generation throughput: 3.4 tokens/s",
        '{"time":1.0,"arm":"reused","promptTokens":120,"reusedTokens":100,"prefill":"10.0.0.1:8000","firstByteMs":12.5}',
        'vllm:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} 3.0',
        'vllm:prompt_tokens_by_source_total{source="external_kv_transfer"} 120.0',
        "tokenizer=Qwen/Qwen3-32B, max_num_batched_tokens=8192",
        "Maximum concurrency for 8,192 tokens per request: 4.00x",
    ],
)
def test_what_helps_stays(line: str) -> None:
    assert redact.log(line) == f"{line}\n"


def test_objects() -> None:
    container: dict[str, Any] = {
        "name": "vllm",
        "args": ["--model=m", f"--api-key={S}", "--hf-token", S, "--tokenizer=t", f"redis://:{S}@host"],
        "command": ["sh", "-c", f"export DB_PASSWORD={S}; run"],
        "env": [
            {"name": "MY_VARIABLE", "value": S},
            {"name": "VLLM_API_KEY", "value": S},
            {"name": "VLLM_LOGGING_LEVEL", "value": "DEBUG"},
            {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}},
        ],
        "livenessProbe": {"httpGet": {"httpHeaders": [{"name": "X-Mine", "value": S}]}},
    }
    pod = {
        "kind": "Pod",
        "metadata": {
            "name": "p",
            "managedFields": [{"manager": S}],
            "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": S,
                "vault/token": S,
                "note": f"password: {S}",
                "kvloop.io/template-hash": "abc",
            },
        },
        "spec": {"containers": [container], "imagePullSecrets": [{"name": "pull"}], "serviceAccountName": "default"},
    }
    found = redact.body(pod)
    assert S not in str(found)
    (kept,) = found["spec"]["containers"]
    assert kept["args"] == [
        "--model=m",
        "--api-key=[left out]",
        "--hf-token",
        "[left out]",
        "--tokenizer=t",
        "redis://[left out]@host",
    ]
    assert kept["command"][:2] == ["sh", "-c"]
    assert kept["env"][2:] == container["env"][2:]
    assert found["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    assert found["metadata"]["annotations"]["kvloop.io/template-hash"] == "abc"


def test_of_config_maps_only_the_routers_settings_are_shown() -> None:
    data = {"router.yaml": f"url: redis://x:{S}@y\nholdoutPercent: 5\n", "plugin.py": S}
    found = redact.body({"kind": "ConfigMap", "metadata": {"name": "c"}, "data": data})
    assert S not in str(found)
    assert "holdoutPercent: 5" in found["data"]["router.yaml"]
    assert found["data"]["plugin.py"] == f"[{len(S)} characters]"
