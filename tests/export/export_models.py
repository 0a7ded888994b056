"""Tiny models with a tokenizer that has learned merges, and adapters on them, as runs leave them."""

import json
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaTokenizer,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from hf_efficient.export.gguf_file import _LLAMA_3

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXT = ["The quick brown fox jumps over the lazy dog.", "How much is 12 + 345? It is 357.", "user assistant system"] * 4
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA_3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CONFIGS = {
    "llama": lambda **more: LlamaConfig(**SIZES, **more),
    "llama-tied": lambda **more: LlamaConfig(**SIZES, tie_word_embeddings=True, **more),
    "llama-3.1": lambda **more: LlamaConfig(**SIZES, rope_parameters=LLAMA_3_ROPE, **more),
    "mistral": lambda **more: MistralConfig(**SIZES, **more),
    "qwen2": lambda **more: Qwen2Config(**SIZES, **more),
    "qwen3": lambda **more: Qwen3Config(**SIZES, head_dim=32, **more),
}


def byte_level_tokenizer(split: str | None = None) -> PreTrainedTokenizerFast:
    """``split``: the expression that cuts a text before the merges, in place of GPT-2's."""
    tokenizer = Tokenizer(models.BPE())
    own = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if split:
        cut = pre_tokenizers.Split(Regex(split), "isolated")
        own = pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.pre_tokenizer, tokenizer.decoder = own, decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    fast.chat_template = CHATML
    return fast


def model_folder(
    folder: Path, kind: str = "llama", tokenizer: PreTrainedTokenizerFast | None = None, **sizes: int
) -> Path:
    """A random model with four more embeddings than tokens."""
    tokenizer = tokenizer or byte_level_tokenizer(_LLAMA_3 if kind == "llama-3.1" else None)
    torch.manual_seed(0)
    config = CONFIGS[kind](vocab_size=len(tokenizer) + 4, initializer_range=0.2)
    config.update(sizes)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def lora_run(base: Path, folder: Path, *, std: float = 0.1, quantization=None, **lora) -> Path:
    """An adapter with weights that matter; ``std``: of its B matrices."""
    loaded = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, quantization_config=quantization)
    lora = {"r": 4, "target_modules": "all-linear", **lora}
    model = get_peft_model(loaded, LoraConfig(task_type="CAUSAL_LM", **lora))
    torch.manual_seed(1)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=std)
    model.save_pretrained(folder)
    return folder


def sentencepiece_tokenizer() -> LlamaTokenizer:
    """As Llama 2 and Mistral have it: unknown characters are bytes, blanks a character, merges by their order."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    trainer = trainers.BpeTrainer(vocab_size=340, special_tokens=names, show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    held = json.loads(tokenizer.to_str())["model"]
    return LlamaTokenizer(vocab=held["vocab"], merges=[tuple(pair) for pair in held["merges"]])
