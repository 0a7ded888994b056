"""``hf-efficient export``: a trained model in the form that other programs run."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hf_efficient.cli.output import print_json


def export(
    target: Annotated[
        str, typer.Argument(metavar="RUN_OR_MODEL", help="Output directory of a run, a model's folder or its hub name.")
    ],
    to: Annotated[
        str,
        typer.Option(metavar="FORM", help="merged, gguf, ollama or vllm; gguf and ollama with :F16, :Q8_0 or :Q4_0."),
    ] = "gguf:Q8_0",
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to write. Default: RUN_OR_MODEL/exports/FORM.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print the sizes of all forms; load and write nothing.")] = False,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Prompts to compare on, as for `generate`. Default: fifty short questions."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="The first N prompts.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens of each compared answer.")] = 32,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Write a trained model as safetensors, GGUF, or for Ollama or vLLM.

    The export is read back and compared with the trained model on greedy answers before it stands.

    Example: hf-efficient export runs/llama3.2-1b-qlora --to gguf:Q8_0
    """
    from hf_efficient.estimate.gguf_size import WRITTEN
    from hf_efficient.export.export import export_run, export_sizes, parse_form
    from hf_efficient.export.proof import QUESTIONS
    from hf_efficient.launch.trained import read_prompts
    from hf_efficient.reporting.export import export_lines, sizes_lines
    from hf_efficient.reporting.terminal import show

    form = parse_form(to)
    if plan:
        sizes = export_sizes(target)
        if as_json:
            print_json({"model": target, "predicted_bytes": sizes})
        else:
            show(sizes_lines(sizes, WRITTEN))
        return
    asked = [row.get("messages") or row["prompt"] for row in read_prompts(prompts)] if prompts else list(QUESTIONS)
    path, report = export_run(target, form, output, questions=asked[:limit], max_new_tokens=max_new_tokens)
    if as_json:
        print_json(asdict(report) | {"output": str(path)})
        return
    show(export_lines(path, report))
