"""A reversible tokenizer without a vocabulary file: a token is up to three letters, up to three digits, or a byte.

Every engine computes the same ids from the same text, which is all that the engines, the router and the guard need.
Like a real one it is canonical only in one direction: ids always decode to a text, but that text may encode to other
ids (bytes instead of letters, pieces cut elsewhere), which is how a re-rendered history drifts.
"""

from __future__ import annotations

import codecs
import re
from itertools import product

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# In the vocabulary as one token each, yet part of the visible text, as in Qwen3.
TAGS = tuple(f"<{slash}{name}>" for name in ("think", "tool_call", "tool_response", "tools") for slash in ("", "/"))

_LETTERS = b"abcdefghijklmnopqrstuvwxyz"
_FIRST_TAG = 256
_PIECES = re.compile(
    b"|".join(re.escape(t.encode()) for t in (*SPECIALS, *TAGS))
    + rb"|[0-9]{1,3}| ?(?:[A-Z][a-z]{0,2}|[a-z]{1,3})|[\x00-\xff]"
)


def _vocabulary() -> list[bytes]:
    """All pieces in the order of their ids; the pieces that no text encodes to (bytes of letters) come first."""
    pieces = [bytes([b]) for b in range(256)]
    pieces += [t.encode() for t in (*SPECIALS, *TAGS)]
    pieces += [b"%0*d" % (width, number) for width in (1, 2, 3) for number in range(10**width)]
    words = [bytes(letters) for width in (1, 2, 3) for letters in product(_LETTERS, repeat=width)]
    for space in (b"", b" "):
        pieces += [space + word for word in words]
        pieces += [space + word.capitalize() for word in words]
    return pieces


PIECES = _vocabulary()
IDS = {piece: number for number, piece in enumerate(PIECES)}
VOCAB_SIZE = len(PIECES)
EOS = IDS[b"<|im_end|>"]
SPECIAL_IDS = frozenset(IDS[t.encode()] for t in SPECIALS)


def encode(text: str) -> list[int]:
    return list(map(IDS.__getitem__, _PIECES.findall(text.encode("utf-8", "replace"))))


def decode(ids: list[int]) -> str:
    """Text of ids; half a character becomes U+FFFD, special tokens are left out."""
    return b"".join(PIECES[i] for i in ids if i not in SPECIAL_IDS).decode("utf-8", "replace")


class Detokenizer:
    """Text of a growing list of ids; holds back an unfinished character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: list[int], *, final: bool = False) -> str:
        return self._decoder.decode(b"".join(PIECES[i] for i in ids if i not in SPECIAL_IDS), final)
