"""What the dashboard shows. `grafana` makes Grafana's JSON of it, `draw` a picture."""

from typing import Final

from e2e.monitoring.panels import Kind, Panel, Query, Row, Unit, percentile, rate, share

TITLE: Final = "kvloop"

_TURNS: Final = "kvloop_router_turns_total"
_FIRST: Final = "kvloop_router_first_byte_seconds"
_BYTES: Final = "vllm:nixl_bytes_transferred_sum"
_PAUSE: Final = "histogram_quantile({}, sum by (le) (rate(kvloop_router_pause_seconds_bucket{{$scope}}[$rate])))"
_REUSED: Final = 'kvloop_router_prompt_tokens_total{$scope, kind="reused"}'
_PROMPT: Final = 'kvloop_router_prompt_tokens_total{$scope, kind="prompt"}'
_GUARDED: Final = "max by (role, engine) (kvloop_router_engine_guard_active{$scope})"
_HELD: Final = (
    "sum by (engine) (kvloop_router_pinned_tokens{$scope}) / max by (engine) (kvloop_router_capacity_tokens{$scope})"
)

GLANCE: Final = Row(
    "At a glance",
    (
        Panel(
            "Reuse",
            Unit.SHARE,
            "Share of the follow-ups' prompt tokens whose KV prefill read from decode; as in kubectl get.",
            (share(_REUSED, _PROMPT, "reuse", "$range"),),
            Kind.NUMBERS,
            4,
            limits=(0.5, 0.1),
        ),
        Panel(
            "Prefill tokens saved",
            Unit.COUNT,
            "Tokens that prefill read instead of computing them.",
            (Query(f"sum(increase({_REUSED}[$range]))", "tokens"),),
            Kind.NUMBERS,
            4,
        ),
        Panel(
            "First token, median",
            Unit.SECONDS,
            "From a request's arrival to the first byte of its stream. Holdout: conversations that never reuse.",
            (percentile(0.5, _FIRST, "arm", more='arm=~"reused|holdout"', window="$range"),),
            Kind.NUMBERS,
            4,
        ),
        Panel(
            "Engines with guard",
            Unit.SHARE,
            "Engines without an active guard reuse nothing.",
            (Query(f"sum({_GUARDED}) / count({_GUARDED})", "engines"),),
            Kind.NUMBERS,
            4,
            limits=(1, 0.5),
        ),
        Panel(
            "Decode memory held",
            Unit.SHARE,
            "Of the fullest decode engine: KV cache that it holds for turns that may come.",
            (Query(f"max({_HELD})", "held"),),
            Kind.NUMBERS,
            4,
            limits=(0.3, 0.45),
        ),
        Panel(
            "Errors",
            Unit.SHARE,
            "Turns that ended with a 5xx status, or whose stream broke off.",
            (share(_TURNS + '{$scope, code=~"5.."}', _TURNS + "{$scope}", "5xx", "$range", fault=True),),
            Kind.NUMBERS,
            4,
            limits=(0.01, 0.05),
        ),
    ),
)

REUSE: Final = Row(
    "Reuse",
    (
        Panel(
            "Reuse of follow-ups",
            Unit.SHARE,
            "Of tokens, as in the status, and of turns. They differ where histories are edited.",
            (
                share(_REUSED, _PROMPT, "tokens"),
                share(_TURNS + '{$scope, arm="reused"}', _TURNS + '{$scope, arm=~"reused|recomputed"}', "turns"),
            ),
        ),
        Panel(
            "Misses by reason",
            Unit.A_SECOND,
            "Follow-ups without reuse. Troubleshooting explains each reason.",
            (rate("kvloop_router_misses_total", "reason", fault=True),),
            stacked=True,
        ),
        Panel(
            "Tokens of follow-ups",
            Unit.A_SECOND,
            "All of the prompt; held by decode; found equal by the guard; read, unless below the threshold.",
            (rate("kvloop_router_prompt_tokens_total", "kind"),),
        ),
        Panel(
            "Turns by arm",
            Unit.A_SECOND,
            "First turns have nothing to reuse. Not eligible: several choices, images, prompt lists and the like.",
            (rate(_TURNS, "arm"),),
            stacked=True,
        ),
        Panel(
            "Turns that cannot reuse",
            Unit.A_SECOND,
            "By what in the request keeps them from it.",
            (rate("kvloop_router_not_eligible_turns_total", "reason", fault=True),),
            stacked=True,
        ),
        Panel(
            "Leases that nobody read",
            Unit.A_SECOND,
            "Ended by leaseSeconds, maxPinnedPercent or the client, or run out at their engine, which counts one for"
            " each rank of tensor parallelism. Each of decode that is ended costs prefill a short one that runs out.",
            (
                rate("kvloop_router_ended_leases_total", legend="ended"),
                rate("vllm:nixl_num_kv_expired_reqs_total", "kvloop_io_role", "run out: {{kvloop_io_role}}"),
            ),
        ),
    ),
)

TIME: Final = Row(
    "Time",
    (
        Panel(
            "First token by arm, median",
            Unit.SECONDS,
            "Reused against holdout is what reuse is worth, if their prompts are of like length.",
            (percentile(0.5, _FIRST, "arm"),),
        ),
        Panel(
            "First token by arm, 95th percentile",
            Unit.SECONDS,
            "The same for the slowest twentieth.",
            (percentile(0.95, _FIRST, "arm"),),
        ),
        Panel(
            "Prefill leg by arm, 95th percentile",
            Unit.SECONDS,
            "From a request's arrival to the end of its prefill leg: most of the time to first token.",
            (percentile(0.95, "kvloop_router_prefill_seconds", "arm"),),
        ),
        Panel(
            "Where the time of conversations goes",
            Unit.COUNT,
            "Conversations that wait for a first token, get tokens, or pause between two turns: tools, people.",
            (rate("kvloop_router_conversation_seconds_total", "part"),),
            stacked=True,
        ),
        Panel(
            "Pauses between turns",
            Unit.SECONDS,
            "Leases have to outlast them; see Expiring in the status.",
            (
                Query(_PAUSE.format(0.5), "median"),
                Query(_PAUSE.format(0.95), "95th percentile"),
            ),
        ),
        Panel(
            "Whole tasks by arm, median",
            Unit.SECONDS,
            "Conversations of two turns or more, from begin to end: what a faster first token is for.",
            (percentile(0.5, "kvloop_router_task_seconds", "arm", fault=True),),
        ),
    ),
)

TRANSFER: Final = Row(
    "KV transfer",
    (
        Panel(
            "Throughput by reader",
            Unit.BYTES_A_SECOND,
            "Prefill reads the KV of earlier turns from decode; decode reads the prompt's from prefill.",
            (rate(_BYTES, "kvloop_io_role"),),
        ),
        Panel(
            "Speed within a transfer",
            Unit.BYTES_A_SECOND,
            "Bytes by the time under way. Far under the fabric's speed: another transport than the one asked for.",
            (
                Query(
                    f"sum by (kvloop_io_role) (rate({_BYTES}{{$scope}}[$rate]))"
                    " / sum by (kvloop_io_role) (rate(vllm:nixl_xfer_time_seconds_sum{$scope}[$rate]))",
                    "{{kvloop_io_role}}",
                ),
            ),
        ),
        Panel(
            "Time of a transfer, 95th percentile",
            Unit.SECONDS,
            "By reader.",
            (percentile(0.95, "vllm:nixl_xfer_time_seconds", "kvloop_io_role"),),
        ),
        Panel(
            "Failures",
            Unit.A_SECOND,
            "All zero while all is well. No request fails by them: the prompt is computed again. Engines count each"
            " rank of tensor parallelism.",
            (
                rate("kvloop_router_failed_transfers_total", legend="prefill legs with a handle"),
                rate("vllm:nixl_num_failed_transfers_total", legend="transfers"),
                rate("vllm:nixl_num_failed_notifications_total", legend="notifications"),
                rate("vllm:nixl_num_notifications_after_expiry_total", legend="late notifications"),
            ),
            width=16,
        ),
        Panel(
            "Prompt tokens of prefill by source",
            Unit.A_SECOND,
            "Computed, found in prefill's own cache, or read from decode: vLLM's counters of what really happened.",
            (rate("vllm:prompt_tokens_by_source_total", "source", more='kvloop_io_role="prefill"'),),
            stacked=True,
        ),
    ),
)

GUARD: Final = Row(
    "Guard and decode's memory",
    (
        Panel(
            "Engines with an active guard",
            Unit.COUNT,
            "As many as there are engines.",
            (
                Query(f"sum by (role) ({_GUARDED})", "{{role}}"),
                Query("count by (role) (max by (role, engine) (kvloop_router_engine_usable{$scope}))", "all {{role}}"),
            ),
        ),
        Panel(
            "Handles by what the guard found",
            Unit.A_SECOND,
            "match: the prompt extends all that decode holds; partial: only its start; released: a lease ends.",
            (rate("kvloop_guard_handles_total", "reason"),),
            stacked=True,
        ),
        Panel(
            "Decode memory held for later turns",
            Unit.SHARE,
            "By engine. Above maxPinnedPercent leases are ended.",
            (Query(_HELD, "{{engine}}"),),
        ),
    ),
)

ROUTER: Final = Row(
    "Router",
    (
        Panel(
            "Turns by status",
            Unit.A_SECOND,
            "499: the client hung up. 429: decode and the queue are full. 502: also where a stream broke off.",
            (rate(_TURNS, "code"),),
            stacked=True,
        ),
        Panel(
            "Queue",
            Unit.COUNT,
            "Turns that wait for room on a decode engine.",
            (Query("sum by (pod) (kvloop_router_queued_turns{$scope})", "{{pod}}"),),
        ),
        Panel(
            "Turned away",
            Unit.A_SECOND,
            "Turns that got 429.",
            (rate(_TURNS, legend="429", more='code="429"', fault=True),),
        ),
        Panel(
            "Turns on engines",
            Unit.COUNT,
            "Legs under way. Should be even among the engines of a role.",
            (Query("sum by (role, engine) (kvloop_router_engine_turns{$scope})", "{{role}} {{engine}}"),),
        ),
        Panel(
            "Legs beyond the first two, turns of decode alone",
            Unit.A_SECOND,
            "Legs that were tried again, and turns whose prompt decode computed, by why.",
            (
                rate("kvloop_router_retries_total", legend="retries"),
                rate("kvloop_router_decode_only_turns_total", "reason", "decode alone: {{reason}}", fault=True),
            ),
        ),
        Panel(
            "Calls of the store, 95th percentile",
            Unit.SECONDS,
            "Valkey's; a memory store makes none.",
            (percentile(0.95, "kvloop_router_store_seconds", "call", fault=True),),
        ),
    ),
)

ENGINES: Final = Row(
    "Engines",
    (
        Panel(
            "KV cache in use",
            Unit.SHARE,
            "By engine; decode's includes what it holds for later turns.",
            (Query("max by (pod) (vllm:kv_cache_usage_perc{$scope})", "{{pod}}"),),
        ),
        Panel(
            "Requests",
            Unit.COUNT,
            "Running, and waiting within the engines.",
            (
                Query("sum by (kvloop_io_role) (vllm:num_requests_running{$scope})", "{{kvloop_io_role}} running"),
                Query("sum by (kvloop_io_role) (vllm:num_requests_waiting{$scope})", "{{kvloop_io_role}} waiting"),
            ),
        ),
        Panel(
            "Hits in the engines' own prefix cache",
            Unit.SHARE,
            "Of tokens asked for. Where prefill's is high anyway, reuse has little left to save.",
            (
                Query(
                    "sum by (kvloop_io_role) (rate(vllm:prefix_cache_hits_total{$scope}[$rate]))"
                    " / sum by (kvloop_io_role) (rate(vllm:prefix_cache_queries_total{$scope}[$rate]))",
                    "{{kvloop_io_role}}",
                ),
            ),
        ),
    ),
)

OPERATOR: Final = Row(
    "Operator, of all resources",
    (
        Panel(
            "Conditions that are not as they should be",
            Unit.COUNT,
            "kubectl describe shows their messages, which say what to do.",
            (
                Query(
                    'kvloop_resource_condition{condition=~"Ready|Available|KVTransferVerified", status!="True"}'
                    ' or kvloop_resource_condition{condition="Stalled", status="True"}',
                    "{{namespace}}/{{name}} {{condition}} {{status}} {{reason}}",
                    fault=True,
                ),
            ),
            Kind.TABLE,
            16,
        ),
        Panel(
            "Age of the last write that came back",
            Unit.SECONDS,
            "Above 90 s the operator is deaf, and its liveness probe restarts it.",
            (Query("max by (pod) (kvloop_canary_age_seconds)", "{{pod}}"),),
        ),
        Panel(
            "Passes by result",
            Unit.A_SECOND,
            "Over one resource each.",
            (Query("sum by (result) (rate(kvloop_reconcile_total[$rate]))", "{{result}}"),),
        ),
        Panel(
            "Time of a pass, and wait for a worker, 95th percentile",
            Unit.SECONDS,
            "A queue that grows shows in the wait first.",
            (
                Query("histogram_quantile(0.95, sum by (le) (rate(kvloop_reconcile_seconds_bucket[$rate])))", "pass"),
                Query(
                    "histogram_quantile(0.95, sum by (le) (rate(kvloop_queue_latency_seconds_bucket[$rate])))", "wait"
                ),
            ),
        ),
        Panel(
            "API requests",
            Unit.A_SECOND,
            "By verb and status. Few while nothing changes: the operator's own Lease, and lists now and then.",
            (Query("sum by (verb, code) (rate(kvloop_api_requests_total[$rate]))", "{{verb}} {{code}}"),),
        ),
    ),
)

ROWS: Final = (GLANCE, REUSE, TIME, TRANSFER, GUARD, ROUTER, ENGINES, OPERATOR)
