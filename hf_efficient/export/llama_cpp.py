"""llama.cpp, compiled, as the package ``cyllama`` brings it: GGUF files quantized by it, and answered by it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf
import torch
from transformers import PreTrainedTokenizerBase

from hf_efficient.errors import ModelError, SetupError, first_line
from hf_efficient.export.agreement import TIE_NATS, Answered
from hf_efficient.facts.environment import is_installed


def load_llama_cpp(needs_it: str) -> Any:
    """The compiled module, silent. Raises ``SetupError``: it is not installed, and what ``needs_it``."""
    try:
        from cyllama.llama import llama_cpp
    except ModuleNotFoundError as error:
        raise SetupError(f"{needs_it} llama.cpp. Install it with `pip install cyllama`.") from error
    llama_cpp.disable_logging()
    llama_cpp.ggml_backend_load_all()
    return llama_cpp


def quantize(source: Path, target: Path, mix: str) -> None:
    """``source``: a GGUF file in F16. Raises ``ModelError``: llama.cpp refuses it."""
    llama_cpp = load_llama_cpp(f"--to: {mix} needs")
    how = llama_cpp.LlamaModelQuantizeParams()
    how.ftype, how.nthread = int(gguf.LlamaFileType[f"MOSTLY_{mix}"]), torch.get_num_threads()
    try:
        llama_cpp.model_quantize(str(source), str(target), how)
    except RuntimeError as error:
        raise ModelError(f"--to: llama.cpp cannot write {mix}: {first_line(error)}. Write :Q8_0.") from error


def compared(path: Path, tokenizer: PreTrainedTokenizerBase, reference: Sequence[Answered]) -> dict[str, int]:
    """Of ``Agreement``: prompts that llama.cpp, which reads texts by the file's own tokenizer, answers greedily as the
    trained model did, and those whose first other token is a tie. Nothing where it is not installed."""
    if not is_installed("cyllama"):
        return {}
    llama_cpp = load_llama_cpp("")
    weights, room = llama_cpp.LlamaModelParams(), llama_cpp.LlamaContextParams()
    weights.n_gpu_layers = 0
    room.n_ctx = room.n_batch = max(len(one.prompt.ids) + len(one.answer) for one in reference) + 8
    room.n_threads = room.n_threads_batch = torch.get_num_threads()
    room.flash_attn_type = 0  # its flash attention rounds more, which decides ties
    model = llama_cpp.LlamaModel(str(path), weights)
    context = llama_cpp.LlamaContext(model, room)
    same = ties = 0
    for one in reference:
        adds = not tokenizer.chat_template  # which writes its own
        ids = model.get_vocab().tokenize(one.prompt.text, add_special=adds, parse_special=True)
        context.kv_cache_clear()
        answer = zip(greedy(llama_cpp, context, ids), one.answer, one.log_probabilities, strict=False)
        others = (float(known[wanted] - known[token]) for token, wanted, known in answer if token != wanted)
        first = next(others, None)
        same += first is None
        ties += first is not None and first < TIE_NATS
    return {"llama_cpp_same_answers": same, "llama_cpp_ties": ties}


def greedy(llama_cpp: Any, context: Any, ids: list[int]) -> Iterator[int]:
    """The most likely tokens after ``ids``, in an empty context, without end."""
    sampler, place = llama_cpp.LlamaSampler(llama_cpp.LlamaSamplerChainParams()), 0
    sampler.add_greedy()
    while True:
        context.decode(llama_cpp.llama_batch_get_one(ids, place))
        place += len(ids)
        ids = [sampler.sample(context, -1)]
        yield ids[0]
