"""Does ``hf-efficient latency`` measure what a loop written by hand, and llama.cpp's own clock, measure?

    python benchmarks/latency.py --model FOLDER --gguf FILE --json benchmarks/results/latency.json

FOLDER holds the model for transformers, FILE the same one for llama.cpp (16 bits). Each engine and its counterpart
run in turns; the figures are medians, and their ratios.
"""

import argparse
import datetime
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from shared import write_result

from hf_efficient.export import latency

_PROMPT, _NEW = 128, 64


def by_hand(folder: str) -> Callable[[], tuple[float, float]]:
    """Seconds to the first and the last token of a greedy loop over ``model.forward`` with its cache."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()

    @torch.no_grad()
    def ask() -> tuple[float, float]:
        ids = torch.randint(10, model.config.vocab_size, (1, _PROMPT))
        began, first, cache = time.perf_counter(), 0.0, None
        for _ in range(_NEW):
            out = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            ids, cache = out.logits[:, -1:].argmax(-1), out.past_key_values
            first = first or time.perf_counter() - began
        return first, time.perf_counter() - began

    return ask


def llama_cpp_own(engine: latency.Engine) -> tuple[latency.Answer, float, float]:
    """An answer of ours, and llama.cpp's own seconds of that same request: of the prompt, and of all evaluations."""
    from cyllama.llama import llama_cpp

    made = []
    build = llama_cpp.LlamaContext

    def kept(model: object, room: object) -> object:
        room.no_perf = False  # type: ignore[attr-defined]
        made.append(build(model, room))
        return made[-1]

    llama_cpp.LlamaContext = kept
    try:
        (answer,) = engine(_PROMPT, _NEW, 1)
    finally:
        llama_cpp.LlamaContext = build
    clock = made[-1].get_perf_data()
    prompt, rest = clock["t_p_eval_ms"] / 1000, clock["t_eval_ms"] / 1000
    return answer, prompt, prompt + rest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--gguf")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    started = datetime.datetime.now(datetime.timezone.utc)
    _, ours = latency._engine(args.model, latency.Load())
    hand = by_hand(args.model)
    rows: dict[str, list[tuple[float, float]]] = {"transformers": [], "by hand": []}
    ours(_PROMPT, _NEW, 1), hand()
    for _ in range(args.rounds):
        (answer,) = ours(_PROMPT, _NEW, 1)
        rows["transformers"].append((answer.first, answer.last))
        rows["by hand"].append(hand())
    if args.gguf:
        _, engine = latency._engine(args.gguf, latency.Load())
        engine(_PROMPT, _NEW, 1)
        rows |= {"llama.cpp": [], "llama.cpp's own clock": []}
        for _ in range(args.rounds):
            answer, first, last = llama_cpp_own(engine)
            rows["llama.cpp"].append((answer.first, answer.last))
            rows["llama.cpp's own clock"].append((first, last))
    medians = {name: [statistics.median(column) for column in zip(*held, strict=True)] for name, held in rows.items()}
    for name, (first, last) in medians.items():
        print(f"{name:<22} first token {first * 1000:8.1f} ms, whole {last * 1000:8.1f} ms")
    figures = {"prompt_tokens": _PROMPT, "new_tokens": _NEW, "rounds": args.rounds, "median_seconds": medians}
    write_result(args.json, "latency", started, figures, ("cyllama",))


if __name__ == "__main__":
    main()
