"""What each export of a run weighs, and how far it is from the trained model; the table of docs/benchmarks.md.

    python benchmarks/exports.py RUN --forms merged,gguf:F16,gguf:Q8_0 --json benchmarks/results/exports.json

All forms are compared on the same answers, which the trained model gives once.
"""

import argparse
import dataclasses
import datetime
import tempfile
from pathlib import Path
from typing import Any

from shared import write_result

from hf_efficient.export import agreement
from hf_efficient.export.export import export_run, parse_form
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
    how: dict[str, Any] = {"questions": agreement.QUESTIONS[: args.prompts], "max_new_tokens": args.max_new_tokens}
    for text in args.forms.split(","):
        form = parse_form(text)
        python = args.python if form.format == "gptq" else None
        with tempfile.TemporaryDirectory() as folder:
            output, report = export_run(
                args.run, form, Path(folder) / "out", evaluate=args.evaluate, python=python, **how
            )
            print("\n".join(export_lines(output, report)), flush=True)
        found.append(dataclasses.asdict(report))
        write_result(args.json, "exports", started, {"exports": found}, _PACKAGES)


if __name__ == "__main__":
    main()
