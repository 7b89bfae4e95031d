"""Write a tiny random Qwen3 with tokenizer, chat template and a LoRA adapter: a real model in every respect but sense.

Run with the Python of the engine's environment (it needs torch, transformers and tokenizers):
`python tiny_model.py FOLDER`. The adapter goes into FOLDER/adapter.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, Qwen3Config

LAYERS, HIDDEN, HEADS, KV_HEADS, MAX_LENGTH, RANK = 4, 256, 4, 2, 8192, 8
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")  # what vLLM's parsers for this family look for
CORPUS = (
    "the agent opens a file, changes one line, runs the tests, reads what failed and tries again until all is green",
    "def answer(question: str) -> str:\n    return ' '.join(word for word in question.split() if word.isalpha())\n",
    'role user assistant system tool name arguments content result {"path": "src/main.py", "line": 12}',
    "0123456789 zero one two three four five six seven eight nine ten, and then some more words of every kind",
)
# Tools and thinking are rendered, so that other tools or a stripped thought give another prompt, as in real templates.
TEMPLATE = """\
{%- if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif -%}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% elif message.content %}\
{% for part in message.content %}{{ part.text | default('') }}{% endfor %}{% endif %}\
{% for call in message.tool_calls | default([], true) %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}\
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}
"""


def write_tokenizer(folder: Path) -> dict[str, int]:
    """A byte-level BPE over a few sentences; any text can be encoded. Returns the ids of the special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 8, trainer)
    tokenizer.add_tokens(list(TAGS))
    tokenizer.save(str(folder / "tokenizer.json"))
    _dump(
        folder / "tokenizer_config.json",
        tokenizer_class="PreTrainedTokenizerFast",
        pad_token=SPECIAL[0],
        eos_token=SPECIAL[2],
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE,
    )
    ids = {token: tokenizer.token_to_id(token) for token in SPECIAL}
    return {"vocab_size": tokenizer.get_vocab_size(), "pad_token_id": ids[SPECIAL[0]], "eos_token_id": ids[SPECIAL[2]]}


def write_weights(folder: Path, ids: dict[str, int]) -> None:
    """Random weights, drawn wide enough for the output to depend on the whole context."""
    config = Qwen3Config(
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HIDDEN // HEADS,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=False,
        dtype="float32",
        **ids,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() > 1:
                weights.normal_(0, 0.08)
    model.save_pretrained(folder)


def write_adapter(folder: Path) -> None:
    """A LoRA adapter that changes what the model says: keys and queries of all layers, so the KV, too."""
    folder.mkdir(exist_ok=True)
    sizes = {"q_proj": HIDDEN, "k_proj": HIDDEN // HEADS * KV_HEADS}
    _dump(
        folder / "adapter_config.json",
        peft_type="LORA",
        r=RANK,
        lora_alpha=2 * RANK,
        target_modules=list(sizes),
        bias="none",
        task_type="CAUSAL_LM",
    )
    torch.manual_seed(1)
    weights = {}
    for layer in range(LAYERS):
        for module, size in sizes.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            weights[f"{name}.lora_A.weight"] = torch.randn(RANK, HIDDEN) * 0.1
            weights[f"{name}.lora_B.weight"] = torch.randn(size, RANK) * 0.1
    save_file(weights, folder / "adapter_model.safetensors")


def _dump(path: Path, **content: object) -> None:
    path.write_text(json.dumps(content, indent=1))


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    write_adapter(folder / "adapter")
    write_weights(folder, write_tokenizer(folder))


if __name__ == "__main__":
    main()
