"""``/metrics`` with the names, labels and meaning of vLLM 0.32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from e2e.enginesim.config import Config

_REASONS = ("stop", "length", "abort", "error", "repetition")
_TTFT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)
_GAPS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TOKENS = tuple(m * 10**e for e in range(6) for m in (1, 2, 5))
_XFER = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 5)


class Metrics:
    """One instance per engine, each with a registry of its own."""

    def __init__(self, config: Config) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"model_name": config.names[0], "engine": "0"}

        self.running = self._gauge("num_requests_running", "Requests in model execution batches.")
        self.waiting = self._gauge("num_requests_waiting", "Requests waiting to be processed.")
        by_reason = Gauge(
            "vllm:num_requests_waiting_by_reason",
            "Waiting requests by reason.",
            [*self._labels, "reason"],
            registry=self.registry,
        )
        self.waiting_for = {r: by_reason.labels(**self._labels, reason=r) for r in ("capacity", "deferred")}
        self.kv_usage = self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.")
        self.prefix_queries = self._counter("prefix_cache_queries", "Queried tokens.")
        self.prefix_hits = self._counter("prefix_cache_hits", "Cached tokens.")
        self.external_queries = self._counter("external_prefix_cache_queries", "Tokens asked of the KV connector.")
        self.external_hits = self._counter("external_prefix_cache_hits", "Tokens the KV connector promised.")
        self.preemptions = self._counter("num_preemptions", "Preemptions.")
        self.prompt_tokens = self._counter("prompt_tokens", "Prefill tokens processed.")
        self.prompt_cached = self._counter("prompt_tokens_cached", "Cached prompt tokens (local and external).")
        self.prompt_by_source = self._counters(
            "prompt_tokens_by_source", "source", ("local_compute", "local_cache_hit", "external_kv_transfer")
        )
        self.cached_by_source = self._counters("prompt_tokens_cached_by_source", "source", ("device", "p2p"))
        self.generation_tokens = self._counter("generation_tokens", "Generation tokens processed.")
        self.success = self._counters("request_success", "finished_reason", _REASONS)
        self.request_prompt = self._histogram("request_prompt_tokens", "Prompt tokens per request.", _TOKENS)
        self.request_generation = self._histogram("request_generation_tokens", "Generated per request.", _TOKENS)
        self.request_computed = self._histogram(
            "request_prefill_kv_computed_tokens", "Newly computed KV tokens per prefill.", _TOKENS
        )
        self.first_token = self._histogram("time_to_first_token_seconds", "Time to first token.", _TTFT)
        self.token_gap = self._histogram("inter_token_latency_seconds", "Inter-token latency.", _GAPS)
        self.latency = self._histogram("e2e_request_latency_seconds", "End to end request latency.", _LATENCY)
        self.queue_time = self._histogram("request_queue_time_seconds", "Time in WAITING.", _LATENCY)
        self.prefill_time = self._histogram("request_prefill_time_seconds", "Time in PREFILL.", _LATENCY)
        self.decode_time = self._histogram("request_decode_time_seconds", "Time in DECODE.", _LATENCY)
        self._cache_info(config)
        if config.transfer is not None:
            self.xfer_time = self._histogram("nixl_xfer_time_seconds", "Duration of KV cache transfers.", _XFER)
            self.post_time = self._histogram("nixl_post_time_seconds", "Post time of transfers.", (0.001, *_XFER))
            sizes = tuple(2 ** (10 + i) for i in range(1, 25, 2))
            self.xfer_bytes = self._histogram("nixl_bytes_transferred", "Bytes per transfer.", sizes)
            self.descriptors = self._histogram("nixl_num_descriptors", "Descriptors per transfer.", _TOKENS)
            self.failed_transfers = self._counter("nixl_num_failed_transfers", "Failed transfers.")
            self.failed_notifications = self._counter("nixl_num_failed_notifications", "Failed notifications.")
            self.expired = self._counter("nixl_num_kv_expired_reqs", "Requests that had their KV expire.")
            self.late_notifications = self._counter(
                "nixl_num_notifications_after_expiry", "Notifications for requests no longer tracked."
            )

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def _cache_info(self, config: Config) -> None:
        labels = {
            "block_size": str(config.block_size),
            "cache_dtype": config.kv_cache_dtype,
            "enable_prefix_caching": str(config.prefix_caching),
            "num_gpu_blocks": str(config.num_blocks),
            "engine": "0",
        }
        info = Gauge("vllm:cache_config_info", "LLMEngine CacheConfig.", list(labels), registry=self.registry)
        info.labels(**labels).set(1)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"vllm:{name}", text, list(self._labels), registry=self.registry).labels(**self._labels)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"vllm:{name}", text, list(self._labels), registry=self.registry).labels(**self._labels)

    def _counters(self, name: str, label: str, values: tuple[str, ...]) -> dict[str, Counter]:
        counter = Counter(f"vllm:{name}", f"By {label}.", [*self._labels, label], registry=self.registry)
        return {value: counter.labels(**self._labels, **{label: value}) for value in values}

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(f"vllm:{name}", text, list(self._labels), buckets=buckets, registry=self.registry)
        return histogram.labels(**self._labels)
