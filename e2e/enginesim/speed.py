"""How long a simulated engine takes, as straight lines through published measurements.

Source: "Improve TTFT for Multi-Turn Agentic Workloads with Bi-Directional KV Transfer in vLLM" (vLLM blog, October
2026), two p5en.48xlarge, tensor parallel 8, prefix lengths 2k to 24k (Qwen3-32B) and 2k to 20k (GLM-5-FP8), plus a mean
history of 2,250 tokens. Only the end points are published, so each line goes through two of them:

* prefill without reuse: 153 to 744 ms (Qwen3-32B), 500 to 2331 ms (GLM-5-FP8)
* KV transfer: 30 to 130 ms, 29 to 110 ms
* `per_cached_token_us` is what remains of the prefill with reuse at the longest prompt (414 and 541 ms, of which one
  turn in ten is a miss) after the transfer and the new tokens: attention over the context, scheduling, HTTP.

* `per_handed_over_token_us` is what remains of the time to first token without reuse (158 to 778 ms, 500 to 2334 ms)
  after the prefill and the first decoded token: decode's pull from prefill, which the published runs hide nearly

The time per decoded token is not published; it is an assumption. So is that a single token, computed on top of a
cached context, takes as long as a decoded one. Everything that follows from these is simulated.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Speed:
    """Milliseconds to start, microseconds per token."""

    prefill_ms: float
    per_computed_token_us: float
    per_cached_token_us: float
    transfer_ms: float
    per_transferred_token_us: float
    per_handed_over_token_us: float
    decode_ms: float

    def prefill(self, computed: int, cached: int) -> float:
        """Seconds to prefill `computed` tokens on top of `cached` ones."""
        if computed == 1 and cached:
            return self.decode(1)
        return self.prefill_ms / 1e3 + (computed * self.per_computed_token_us + cached * self.per_cached_token_us) / 1e6

    def transfer(self, tokens: int) -> float:
        """Seconds for prefill to pull the KV of `tokens` tokens from decode."""
        return self.transfer_ms / 1e3 + tokens * self.per_transferred_token_us / 1e6

    def hand_over(self, tokens: int) -> float:
        """Seconds for decode to pull the KV of `tokens` tokens from prefill."""
        return tokens * self.per_handed_over_token_us / 1e6

    def decode(self, tokens: int) -> float:
        """Seconds to decode `tokens` tokens of one request."""
        return tokens * self.decode_ms / 1e3


@dataclass(frozen=True)
class Wire:
    """What an engine's telemetry would say of a transfer over some fabric; nothing really moves so."""

    bytes_per_token: int
    start_ms: float
    gigabytes_per_second: float

    def size(self, tokens: int) -> int:
        """Bytes of so many tokens' KV on one accelerator."""
        return tokens * self.bytes_per_token

    def seconds(self, tokens: int) -> float:
        """Seconds to move them."""
        return self.start_ms / 1e3 + self.size(tokens) / self.gigabytes_per_second / 1e9


_QWEN3_32B_TP8 = 2 * 64 * 128 * 2  # keys and values, layers, head size, bytes; one of 8 KV heads on each of 8 GPUs
WIRES = {
    # 6.29 GB in 130 ms over 8 GPUs, in the same published runs.
    "EFA": Wire(_QWEN3_32B_TP8, 10.7, 6.0),
    # As seen where UCX fell back to it: https://github.com/ray-project/ray/pull/62339
    "TCP": Wire(_QWEN3_32B_TP8, 10.7, 0.3),
}

PRESETS = {
    "none": Speed(0, 0, 0, 0, 0, 0, 0),
    "qwen3-32b": Speed(39, 26.9, 7.5, 10.7, 4.55, 0.8, 12),
    "glm-5-fp8": Speed(68, 101.7, 5.4, 9.9, 4.50, 0, 20),
}
