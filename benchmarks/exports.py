"""What each export of a run weighs, and how far it is from the trained model; the table of docs/benchmarks.md.

    python benchmarks/exports.py RUN --forms merged,gguf:F16,gguf:Q8_0 --json benchmarks/results/exports.json

All forms are compared on the same answers, which the trained model gives once. The F16 file is also answered by
transformers and by llama.cpp, so that nothing but their arithmetic differs.
"""

import argparse
import dataclasses
import datetime
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shared import write_result
from transformers import AutoConfig

from hf_efficient.export import agreement, llama_cpp
from hf_efficient.export.agreement import answers_of  # before it is replaced below
from hf_efficient.export.export import export_run, parse_form
from hf_efficient.export.gguf_file import read_gguf
from hf_efficient.reporting.trained_model import export_lines

_PACKAGES = ("cyllama", "gguf", "onnx", "onnxruntime", "onnxscript", "peft")


def answered_once() -> None:
    asked = agreement.answers_of
    kept: list[Any] = []

    def answers(*given: Any) -> Any:
        if not kept:
            kept.append(asked(*given))
        return kept[0]

    agreement.answers_of = answers  # type: ignore[assignment]


def greedy_of_the_file(path: Path, questions: Sequence[str], max_new_tokens: int) -> dict[str, int]:
    """Greedy answers of llama.cpp to those that transformers reads from the same file."""
    model, tokenizer, _ = read_gguf(path, AutoConfig.from_pretrained(path.parent, gguf_file=path.name))
    reference = answers_of(model, tokenizer, agreement.as_prompts(tokenizer, questions), max_new_tokens)
    tokens = sum(len(one.answer) for one in reference)
    return {"prompts": len(reference), "tokens": tokens, **llama_cpp.compared(path, tokenizer, reference)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--forms", default="merged,gguf:F16,gguf:Q8_0,gguf:Q4_K_M,gguf:Q4_0,onnx")
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--max-new-tokens", type=int, default=32)
    parser.add_argument("--evaluate", type=int, default=64)
    parser.add_argument("--python", type=Path, help="with GPTQModel, for gptq")
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    started = datetime.datetime.now(datetime.timezone.utc)
    answered_once()
    found: list[Any] = []
    same: dict[str, int] = {}
    how: dict[str, Any] = {"questions": agreement.QUESTIONS[: args.prompts], "max_new_tokens": args.max_new_tokens}
    for text in args.forms.split(","):
        form = parse_form(text)
        python = args.python if form.format == "gptq" else None
        with tempfile.TemporaryDirectory() as folder:
            output, report = export_run(
                args.run, form, Path(folder) / "out", evaluate=args.evaluate, python=python, **how
            )
            print("\n".join(export_lines(output, report)), flush=True)
            if text == "gguf:F16":
                (path,) = output.glob("*.gguf")
                same = greedy_of_the_file(path, how["questions"], args.max_new_tokens)
                print(f"of the same file: {same}", flush=True)
        found.append(dataclasses.asdict(report))
        figures = {"exports": found, "greedy_of_the_f16_file": same}
        write_result(args.json, "exports", started, figures, _PACKAGES)


if __name__ == "__main__":
    main()
