"""The gate of an engine: every request on its way into the engine core, and every output on its way out.

Sees vLLM's objects only by the attributes named in `REQUEST_FIELDS` and `OUTPUT_FIELDS`, and imports nothing of vLLM.
"""

from __future__ import annotations

import logging
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvloop.engine import guard
from kvloop.engine.tail import Tail, current

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

KV = "kv_transfer_params"
REQUEST_FIELDS = frozenset(
    {"request_id", "prompt_token_ids", "prompt_embeds", "mm_features", "sampling_params", "lora_request", "cache_salt"}
)
OUTPUT_FIELDS = frozenset({"request_id", "new_token_ids", "finish_reason", KV})

log = logging.getLogger("vllm.kvloop")  # below vLLM's own logger, whose handlers and level it takes


@dataclass
class _Open:
    """A request with a handle that is inside the engine."""

    prompt: array[int] | None
    """Packed, as the guard wants it; None if its tokens do not tell all that its KV depends on: it gets no guard."""
    key: bytes
    report: guard.Report | None
    tail: Tail | None
    tokens: list[int] = field(default_factory=list)


class Gate:
    """One engine core's."""

    def __init__(
        self, block_size: int, spent: guard.Spent, observe: Callable[[guard.Report], None], *, whole: bool = True
    ) -> None:
        """`observe` is told what became of each handle that offered KV, `whole` as in `guard.sign`."""
        self._block_size = block_size
        self._whole = whole
        self._spent = spent
        self._observe = observe
        self._groups: int | None = None
        self._open: dict[str, _Open] = {}

    def admit(self, request: Any) -> None:
        """Cut a request's handle down to what its prompt provably shares. Never raises, never lets one pass unchecked.

        Several requests may share one handle (``n`` above 1, lists of prompts), so it is not changed but replaced.
        """
        params = request.sampling_params
        extra = getattr(params, "extra_args", None)
        if not extra or extra.get(KV) in (None, {}):  # nothing else, however empty: vLLM's engine core dies of a 0
            return
        handle = extra[KV]
        try:
            checked = self._check(request, dict(handle))
        except Exception:
            log.exception("kvloop could not check the handle of request %s and dropped it", request.request_id)
            checked = {}
        params.extra_args = {**extra, KV: checked} if checked else {k: v for k, v in extra.items() if k != KV}

    def deliver(self, outputs: Iterable[Any]) -> None:
        """Follow the requests that are inside, and sign the handles of those that end. Never raises."""
        if not self._open:
            return
        for output in outputs:
            request = self._open.get(output.request_id)
            if request is None:
                continue
            request.tokens += output.new_token_ids
            if output.finish_reason is not None:
                del self._open[output.request_id]
                if output.kv_transfer_params:
                    self._sign(request, output.kv_transfer_params)

    def forget(self, request_ids: Iterable[str]) -> None:
        """These requests were aborted; no output will tell."""
        for request_id in request_ids:
            self._open.pop(request_id, None)

    def _check(self, request: Any, handle: dict[str, Any]) -> dict[str, Any]:
        prompt = array("I", request.prompt_token_ids or ())  # once: it takes as long as a digest of them
        text_only = not request.mm_features and request.prompt_embeds is None
        lora = request.lora_request
        adapter = f"{lora.lora_name}={lora.lora_path}" if lora is not None else None
        key = guard.seed(adapter, request.cache_salt)
        over = getattr(request, "abort_immediately", False)
        if over:  # refused before it had a prompt: it only lets go of the blocks that it came to read
            handle.pop(guard.PROMPT_DIGEST, None)
        size = self._block_size if self._whole and prompt and not over else None
        report = guard.shrink(
            handle, prompt, key, text_only=text_only, groups=self._groups, block_size=size, spent=self._spent
        )
        if report is not None:
            self._observe(report)
        # Requests that are over at once give no output; those that get more input later have no prompt of their own.
        if handle and not over:
            whole = text_only and not getattr(request, "resumable", False)
            self._open[request.request_id] = _Open(prompt if whole else None, key, report, current.get())
        return handle

    def _sign(self, request: _Open, handle: dict[str, Any]) -> None:
        try:
            self._groups = len(handle["remote_block_ids"])
            if request.report is not None and not handle["do_remote_decode"]:
                handle["guard"] = request.report.as_dict()
            if request.prompt is not None:
                size, whole = self._block_size, self._whole
                guard.sign(handle, request.prompt, request.tokens, size, request.key, whole=whole)
        except Exception:
            log.exception("kvloop could not sign a handle; the next turn will be computed")
        if request.tail is not None:
            request.tail.handle = handle
