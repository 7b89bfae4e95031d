"""The contract suite on real engines: every test of it but those named here."""

import pytest

from e2e.contract import (
    test_chat,
    test_dialects,
    test_faults,
    test_histories,
    test_leases,
    test_protocol,
    test_streams,
)

pytestmark = pytest.mark.engine

_CLOCK = "moves the clock; test_leases and test_restarts show it in real time"
_ENDS = "ends engines; test_restarts does so once for all"
_SETUP = "needs engines of another setup, which take a minute to start; observed once on vLLM 0.32"
_WORDS = "needs a model that thinks, calls tools, or says what is tokenized again as it was generated"
_MEDIA = "needs a multimodal model"
_OTHER_VERSION = "plays another version of vLLM"
_SHOWN_ELSEWHERE = "test_unguarded shows it"
SIMULATED = {
    "test_the_last_five_seconds_of_a_lease_are_not_read": _CLOCK,
    "test_leases_end_by_themselves": _CLOCK,
    "test_a_decode_engine_without_bidirectional_transfer_gives_none": _SETUP,
    "test_engines_that_do_not_match_compute_alone_on_decode_and_fail_on_prefill": _SETUP,
    "test_setups_that_hang_for_ever_and_leak_blocks": _SETUP,
    "test_without_the_plugin_what_is_preempted_after_its_read_hangs_for_ever": _SETUP,
    "test_a_dead_decode_engine_fails_the_leg_and_a_retry_without_the_handle_works": _ENDS,
    "test_a_restarted_decode_engine_refuses_old_handles_and_serves_new_ones": _ENDS,
    "test_a_restarted_prefill_engine_reads_handles_of_before": _ENDS,
    "test_a_failed_prefill_leg_in_a_stream_is_one_error_event": _ENDS,
    "test_vllm_033_sends_the_handle_itself_from_the_finish_reason_on": _OTHER_VERSION,
    "test_vllm_020_has_no_way_back": _OTHER_VERSION,
    "test_before_vllm_026_handles_have_no_expiry_and_are_not_read": _OTHER_VERSION,
    "test_vllm_033_sends_it_itself_in_all": _OTHER_VERSION,
    "test_a_plain_conversation_is_reused_whole": _WORDS,
    "test_a_reply_of_tool_calls_and_two_results_is_reused_whole": _WORDS,
    "test_a_demanded_tool_call_is_reused_whole": _WORDS,
    "test_thinking_that_is_left_out_costs_only_the_reply": _WORDS,
    "test_thinking_that_is_kept_is_reused": _WORDS,
    "test_a_follow_up_reuses_the_whole_history": _WORDS,
    "test_a_tool_call_and_its_result_are_reused": _WORDS,
    "test_thinking_is_told_from_the_reply": _WORDS,
    "test_an_image_in_the_history_is_not_reused": _MEDIA,
    "test_without_the_plugin_no_stream_has_a_handle": _SHOWN_ELSEWHERE,
    "test_without_the_plugin_only_responses_streams_have_the_handle": _SHOWN_ELSEWHERE,
    "test_without_the_plugin_nobody_claims_to_be_it": _SHOWN_ELSEWHERE,
}

for module in (test_histories, test_leases, test_streams, test_faults, test_protocol, test_chat, test_dialects):
    tests = {name: test for name, test in vars(module).items() if name.startswith("test_")}
    globals().update({name: test for name, test in tests.items() if name not in SIMULATED})
