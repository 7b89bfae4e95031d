"""Speed and memory of published systems, to start from where nothing has been measured.

Times: "Improve TTFT for Multi-Turn Agentic Workloads with Bi-Directional KV Transfer in vLLM" (vLLM blog, October
2026), on two p5en.48xlarge with tensor parallel 8. Only end points are published; each line goes through two of them,
at 2,000 and 24,000 (Qwen3-32B) or 20,000 (GLM-5-FP8) tokens of prefix and 2,250 of history: prefill of 153 to 744 ms
and 500 to 2331 ms without reuse, transfers of 30 to 130 ms and 29 to 110 ms. The transfer line here also has what is
left of the prefill with reuse at the longest prompt, 414 and 541 ms, one turn in ten being a miss: 7.5 and 5.4
microseconds a token for attention over what came, scheduling and HTTP.

Memory: an estimate for 8 H200 of 141 GB at 90 percent, less the weights. Qwen3-32B in bf16: 950 GB at 262,144 bytes a
token. GLM-5-FP8, 744 billion parameters: 34 GB a GPU at 98 KiB a token, since every GPU holds all of the latent KV.

The time for a decoded token is an assumption.
"""

from dataclasses import dataclass
from typing import Final

from kvloop.advice.evidence import Line


@dataclass(frozen=True, slots=True)
class Model:
    """A system to calculate with."""

    name: str
    prefill: Line
    """Prefill seconds over computed tokens."""
    transfer: Line
    """Seconds of a prefill leg over fetched tokens, beyond what its computed tokens take."""
    decode_seconds: float
    """For one token."""
    capacity_tokens: int
    """Tokens that the KV cache of one decode pod holds."""


QWEN3_32B: Final = Model("qwen3-32b", Line(0.039, 26.9e-6), Line(0.0107, 4.55e-6 + 7.5e-6), 0.012, 3_600_000)
GLM_5_FP8: Final = Model("glm-5-fp8", Line(0.068, 101.7e-6), Line(0.0099, 4.5e-6 + 5.4e-6), 0.02, 340_000)
MODELS: Final = {model.name: model for model in (QWEN3_32B, GLM_5_FP8)}
