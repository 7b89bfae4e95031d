"""Proof, token by token, that a prompt extends what a decode engine holds.

vLLM reads a decode engine's KV blocks by position and compares no tokens. The decode engine therefore adds a *guard* to
its handle (``kv_transfer_params``): a chained digest of the tokens whose KV it holds. Before a prompt that carries the
handle enters the prefill engine, `shrink` compares the chain with the prompt's own tokens and cuts the handle down to
the common prefix, so that nothing else can be read. The wire format is specified in ``operator/docs/guard.md``.

Pure: no clock, no files, no network, no vLLM. Runs inside a stock vLLM image: standard library only, Python 3.10+.
"""

from __future__ import annotations

import json
import math
import re
import sys
from array import array
from base64 import b64decode, b64encode
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeGuard

VERSION = 1
PROMPT_DIGEST = "prompt_digest"
"""Key of a prefill engine's handle: digest of the prompt that it computed."""
LINK_BYTES = 16
MAX_LINKS = 512

Reason = Literal[
    "match",  # all tokens of the handle
    "partial",  # the first whole links
    "mismatch",  # not even the first link
    "released",  # nothing is offered: the lease is to end
    "multimodal",  # images, audio or embeddings: the tokens do not tell the content
    "kv_groups",  # a proper prefix of several KV cache groups cannot be named
    "dcp",  # nor of blocks spread over decode context parallel ranks
    "block_count",  # the blocks do not fit the number of tokens
    "no_expiry",  # without the lease's end vLLM would read freed blocks
    "no_guard",
    "unknown_version",
    "malformed",
    "already_read",  # its lease has ended, its blocks may be another request's
    "other_prompt",  # the decode leg renders another prompt than the prefill leg did
]

# Every character of host names, IPv4 and IPv6 addresses with a zone; nothing that could end a URL's authority.
_HOST = re.compile(r"[A-Za-z0-9._:%\[\]-]{1,255}")
_BASE64_LIMIT = 4 * math.ceil(MAX_LINKS * LINK_BYTES / 3)
_MAX_GROUPS = 64
_MAX_PARALLEL = 1024


@dataclass(frozen=True)
class Report:
    """What the prefill engine made of a handle, in tokens; it answers this as ``kv_transfer_params.guard``."""

    offered: int
    verified: int
    reason: Reason

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Guard:
    """A guard taken from the wire, checked to be consistent in itself."""

    block_size: int
    stride: int
    tokens: int
    chain: bytes
    tail: bytes


class Refusal(Exception):  # noqa: N818 - an outcome, not an error
    """Why nothing of a handle may be read."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


class Spent(Protocol):
    """Memory of the handles that this engine has used: the first use ends the lease."""

    def use(self, handle: dict[str, Any]) -> bool:
        """Note a sound handle as used; False if it was before."""


def seed(lora: str | None, cache_salt: str | None) -> bytes:
    """Key of the first link: what else decides a KV block's content, besides the tokens.

    `lora` is the adapter's name and path, as vLLM's own prefix cache tells adapters: names can be loaded anew.
    """
    text = json.dumps(["kvloop-guard", VERSION, lora or "", cache_salt or ""])
    return blake2b(text.encode(), digest_size=LINK_BYTES).digest()


def make(tokens: Sequence[int], n: int, block_size: int, key: bytes) -> dict[str, Any]:
    """Guard of the first `n` tokens of a sequence whose KV lies in blocks of `block_size` tokens.

    `key` comes from `seed`. Raises if `n` is not within the sequence or a token is no 32-bit unsigned integer: the
    caller holds the engine's own tokens.
    """
    if not 0 < n <= len(tokens):
        raise ValueError(f"a guard of {n} tokens cannot be made from a sequence of {len(tokens)}")
    stride = block_size * math.ceil(n / (block_size * MAX_LINKS))
    data, step = _pack(tokens[:n]), stride * 4
    links = []
    for start in range(0, n // stride * step, step):
        key = _link(data[start : start + step], key)
        links.append(key)
    tail = _link(data[len(links) * step :], key)
    chain = b64encode(b"".join(links)).decode()
    return {"v": VERSION, "bs": block_size, "stride": stride, "n": n, "chain": chain, "tail": b64encode(tail).decode()}


def sign(
    handle: dict[str, Any], prompt: array[int], reply: Sequence[int], block_size: int, key: bytes, *, whole: bool = True
) -> None:
    """Have this engine's own handle name no more than what surely has KV, and add what proves which tokens that is.

    A decode engine's handle gets a guard. A prefill engine's gets a digest of the prompt: the two legs of a turn differ
    in fields that should not shape the prompt, and where a chat template lets one of them do so, or looks at the clock,
    the decode engine would read KV of another prompt. `whole` is False if not all tokens of a sequence are kept in
    blocks. Raises if the handle is not of vLLM's shape.
    """
    n = int(handle["remote_num_tokens"])
    if handle["do_remote_decode"]:
        sequence = prompt + array("I", reply)
        if whole:  # the last token was sampled, and not computed
            n = _trim(handle, len(sequence) - 1, block_size)
        if n <= len(sequence):
            handle["guard"] = make(sequence, n, block_size, key)
        return
    if whole:
        n = _trim(handle, len(prompt), block_size)
    # If it names more all the same, the decode engine must not take it for its prompt.
    held = prompt if n <= len(prompt) else prompt + array("I", reply)
    handle[PROMPT_DIGEST] = b64encode(_link(_pack(held), key)).decode()


def _trim(handle: dict[str, Any], tokens: int, block_size: int) -> int:
    """Cut a handle to at most `tokens` and to the blocks that hold them; returns the tokens that it then names.

    When a request ends vLLM also counts tokens of steps that are under way, and lists blocks that it keeps for drafts;
    its reader takes the last blocks of the list. Of several KV cache groups, and of blocks spread over decode context
    parallel ranks, a prefix cannot be named.
    """
    n, groups = int(handle["remote_num_tokens"]), handle["remote_block_ids"]
    if len(groups) == 1 and handle.get("dcp_size", 1) == 1:
        n = min(n, tokens)
        handle["remote_num_tokens"], handle["remote_block_ids"] = n, [groups[0][: -(-n // block_size)]]
    return n


def verify(guard: Guard, tokens: Sequence[int], key: bytes) -> int:
    """Length of the longest provable common prefix of a prompt and the guarded sequence: all of it, or whole links.

    The prompt's last token never counts, so that at least one token is computed and the engine has something to sample
    from. Stops at the first link that differs.
    """
    limit = min(guard.tokens, len(tokens) - 1)
    if limit <= 0:
        return 0
    data, step = _pack(tokens[:limit]), guard.stride * 4
    links = limit // guard.stride
    for i in range(links):
        key = _link(data[i * step : (i + 1) * step], key)
        if key != guard.chain[i * LINK_BYTES : (i + 1) * LINK_BYTES]:
            return i * guard.stride
    if limit == guard.tokens and _link(data[links * step :], key) == guard.tail:
        return limit
    return links * guard.stride


def shrink(
    handle: dict[str, Any],
    tokens: Sequence[int],
    key: bytes,
    *,
    text_only: bool = True,
    groups: int | None = None,
    block_size: int | None = None,
    spent: Spent | None = None,
) -> Report | None:
    """Cut a request's handle, in place, down to what the prompt provably shares with it. Never raises.

    None where no decode engine's blocks are offered: a first turn, or a decode leg, which passes as it is or, if vLLM
    must not have it, is emptied, so that the decode engine computes the prompt itself. With 0 verified the prefill
    engine computes the whole prompt and still tells the decode engine to end the lease; a handle that was used before,
    or is too broken for even that, is dropped. `text_only` is False for prompts with multimodal features or embeddings,
    `groups` is the number of this engine's KV cache groups if it is known, `block_size` its own if its models keep all
    tokens of a sequence in blocks, `spent` remembers the handles that went through here.
    """
    wire, prompt_digest = handle.pop("guard", None), handle.pop(PROMPT_DIGEST, None)
    for private in [k for k in handle if not isinstance(k, str) or k.startswith("_")]:
        del handle[private]  # the engine's own bookkeeping must not come from outside
    if handle.get("do_remote_prefill") or not handle.get("do_remote_decode"):
        return _take(handle, tokens, key, prompt_digest, block_size, spent)
    if not handle.get("remote_block_ids"):
        return None
    offered = handle.get("remote_num_tokens")
    if not _is_int(offered, 0):
        offered = 0
    if not _is_sound(handle):
        return _drop(handle, Report(offered, 0, "malformed"))
    if spent is not None and not spent.use(handle):
        return _drop(handle, Report(offered, 0, "already_read"))
    # vLLM reads the last blocks of the list, so the list is cut to the verified ones. With none verified it must still
    # not be empty, or vLLM would not notify the decode engine.
    try:
        _require(handle.get("remote_num_tokens") != 0, "released")
        _require(text_only, "multimodal")
        guard = parse(wire)
        _require(groups is None or groups == len(handle["remote_block_ids"]), "block_count")
        _require(block_size is None or guard.block_size == block_size, "block_count")
        verified = _judge(handle, guard, tokens, key)
        report = Report(offered, verified, "match" if verified == offered else "partial")
        keep = -(-verified // guard.block_size)
    except Refusal as refusal:
        report, keep = Report(offered, 0, refusal.reason), 1
    handle["remote_block_ids"] = [group[:keep] for group in handle["remote_block_ids"]]
    handle["remote_num_tokens"] = report.verified
    return report if _are_ids(handle["remote_block_ids"]) else _drop(handle, Report(offered, 0, "malformed"))


def parse(wire: Any) -> Guard:
    """The guard of a handle; raises `Refusal` if there is none to go by."""
    _require(wire is not None, "no_guard")
    if not isinstance(wire, dict) or not _is_int(wire.get("v"), 0):
        raise Refusal("malformed")
    _require(wire["v"] == VERSION, "unknown_version")
    bs, stride, n = wire.get("bs"), wire.get("stride"), wire.get("n")
    if not (_is_int(bs, 1) and _is_int(stride, 1) and _is_int(n, 1)) or stride % bs:
        raise Refusal("malformed")
    chain, tail = _decode(wire.get("chain")), _decode(wire.get("tail"))
    _require(len(chain) == n // stride * LINK_BYTES and len(tail) == LINK_BYTES, "malformed")
    return Guard(bs, stride, n, chain, tail)


def _judge(handle: dict[str, Any], guard: Guard, tokens: Sequence[int], key: bytes) -> int:
    """Tokens of a sound handle that may be read; raises `Refusal` if none may."""
    groups, dcp = handle["remote_block_ids"], handle.get("dcp_size", 1)
    _require(guard.tokens == handle.get("remote_num_tokens"), "malformed")
    _require(handle.get("remote_blocks_expiry_time") is not None, "no_expiry")
    _require(max(map(len, groups)) == -(-guard.tokens // (guard.block_size * dcp)), "block_count")
    try:
        verified = verify(guard, tokens, key)
    except (TypeError, OverflowError, ValueError):  # prompt tokens that are no 32-bit unsigned integers
        raise Refusal("malformed") from None
    _require(verified > 0, "mismatch")
    if verified < guard.tokens:
        _require(len(groups) == 1, "kv_groups")
        _require(dcp == 1, "dcp")
    return verified


def _is_sound(handle: dict[str, Any]) -> bool:
    """Whether vLLM can take this handle's fields without failing on their types."""
    names = (handle.get("remote_engine_id"), handle.get("remote_request_id"))
    host, port = handle.get("remote_host"), handle.get("remote_port")
    expiry = handle.get("remote_blocks_expiry_time")
    groups = handle.get("remote_block_ids")
    return (
        all(isinstance(name, str) and 0 < len(name) <= 512 for name in names)
        and isinstance(host, str)
        and _HOST.fullmatch(host) is not None
        and _is_int(port, 1, 65535)
        and all(_is_int(handle.get(k, 1), 1, _MAX_PARALLEL) for k in ("tp_size", "dcp_size", "pp_size"))
        and _is_int(handle.get("remote_num_tokens", 0), 0)
        and isinstance(handle.get("transfer_mode", ""), str)
        and (expiry is None or _is_finite(expiry))
        and all(isinstance(handle.get(k, False), bool) for k in ("do_remote_decode", "do_remote_prefill"))
        and isinstance(groups, list)
        and 0 < len(groups) <= _MAX_GROUPS
        and all(isinstance(group, list) for group in groups)
    )


def _take(
    handle: dict[str, Any],
    tokens: Sequence[int],
    key: bytes,
    digest: Any,
    block_size: int | None,
    spent: Spent | None,
) -> Report | None:
    """Let a decode leg's handle pass as it is, or empty it; a report tells why where the handle itself is sound."""
    reason: Reason
    if not _may_load(handle, spent):
        handle.clear()
        return None
    if block_size is not None and not _has_blocks(handle, len(tokens), block_size):
        reason = "block_count"
    elif digest is not None and not _is_prompt(digest, tokens, key):
        reason = "other_prompt"
    else:
        return None
    handle.clear()
    return Report(len(tokens), 0, reason)


def _may_load(handle: dict[str, Any], spent: Spent | None) -> bool:
    """Whether a decode leg may go to vLLM as it is.

    Half a handle would end in an assertion there, a second read in whatever the blocks hold by then, and parameters
    that ask for neither direction in blocks that are never freed.
    """
    return (
        bool(handle.get("do_remote_prefill"))
        and not handle.get("do_remote_decode")
        and _is_sound(handle)
        and _are_ids(handle["remote_block_ids"])
        and (spent is None or spent.use(handle))
    )


def _has_blocks(handle: dict[str, Any], tokens: int, block_size: int) -> bool:
    """Whether a prefill engine's blocks are those of so many tokens: vLLM dies of too few, and of more reads the last.

    True also where that cannot be told: of several KV cache groups and decode context parallel ranks.
    """
    groups = handle["remote_block_ids"]
    if len(groups) != 1 or handle.get("dcp_size", 1) != 1:
        return True
    return bool(handle.get("remote_num_tokens", tokens) == tokens and len(groups[0]) == -(-tokens // block_size))


def _is_prompt(digest: Any, tokens: Sequence[int], key: bytes) -> bool:
    """Whether a prefill engine's digest is that of these tokens."""
    try:
        return bool(digest == b64encode(_link(_pack(tokens), key)).decode())
    except (TypeError, OverflowError, ValueError):  # tokens that are no 32-bit unsigned integers
        return False


def _drop(handle: dict[str, Any], report: Report) -> Report:
    """Turn a handle that cannot even be used to end the lease into a first turn's parameters."""
    handle.clear()
    handle.update(do_remote_decode=True, do_remote_prefill=False)
    return report


def _is_int(value: Any, low: int, high: int = 2**31 - 1) -> TypeGuard[int]:
    return type(value) is int and low <= value <= high  # a bool is no count


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e15  # so neither NaN nor infinite


def _are_ids(groups: list[list[Any]]) -> bool:
    """Whether these are lists of block numbers; there are thousands in a long prompt."""
    some = [group for group in groups if group]
    return bool(some) and all(set(map(type, g)) == {int} and min(g) >= 0 and max(g) < 2**31 for g in some)


def _decode(text: Any) -> bytes:
    if not isinstance(text, str) or len(text) > _BASE64_LIMIT:
        raise Refusal("malformed")
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise Refusal("malformed") from None


def _require(holds: bool, reason: Reason) -> None:
    if not holds:
        raise Refusal(reason)


def _pack(tokens: Sequence[int]) -> bytes:
    """Tokens as little-endian 32-bit unsigned integers; `array` converts a list three times as fast as numpy does."""
    packed = array("I", tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _link(data: bytes, key: bytes) -> bytes:
    return blake2b(data, key=key, digest_size=LINK_BYTES).digest()
