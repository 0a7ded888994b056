"""What a trained model is used for: ``hf-efficient chat``, ``generate``, ``eval``, ``merge``, ``export``."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from hf_efficient.cli.output import RunOrModel, print_json

MaxNewTokens = Annotated[int, typer.Option(min=1, metavar="N", help="Tokens of an answer at most.")]
Temperature = Annotated[float, typer.Option(min=0.0, help="0: the most likely token each time.")]
TopP = Annotated[float, typer.Option(min=0.0, max=1.0, help="Draw from the likeliest tokens of this sum.")]
System = Annotated[str | None, typer.Option(metavar="TEXT", help="The system's message, before all others.")]

_END, _RESET = "/exit", "/reset"


def chat(
    target: RunOrModel,
    system: System = None,
    compare: Annotated[
        Literal["base"] | None,
        typer.Option(metavar="base", help="Show the answers of a run's base model beside its own."),
    ] = None,
    max_new_tokens: MaxNewTokens = 512,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
) -> None:
    """Talk to a trained model; /reset forgets what was said, /exit ends the chat.

    Example: hf-efficient chat runs/llama3.2-1b-qlora --compare base
    """
    from rich.text import Text

    from hf_efficient.errors import DataError
    from hf_efficient.launch.trained import Answerer, Conversation, Sampling
    from hf_efficient.reporting.terminal import show, table

    answerer = Answerer(target, Sampling(max_new_tokens, temperature, top_p))
    sides = [Conversation(answerer, system)] + [Conversation(answerer, system, as_base=True)] * bool(compare)
    print(f"{target}. Write {_RESET} to begin again, {_END} to end.")
    while (text := _asked()) is not None:
        try:
            if text == _RESET:
                for one in sides:
                    one.messages = []
            elif text and compare:
                made = table("trained", "base", words=(0, 1), gap=4)
                made.add_row(*(Text(one.ask(text)) for one in sides))
                show([made])
            elif text:
                sides[0].ask(text, on_text=lambda piece: print(piece, end="", flush=True))
                print()
        except DataError as error:
            print(f"error: {error} {_RESET} begins again.")


def _asked() -> str | None:
    try:
        text = input("> ").strip()
    except EOFError:
        return None
    return None if text == _END else text


def generate(
    target: RunOrModel,
    prompts: Annotated[
        Path,
        typer.Option(metavar="FILE", help='JSONL with "prompt" or "messages" in each row, or a text file of prompts.'),
    ],
    system: System = None,
    max_new_tokens: MaxNewTokens = 512,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    batch_size: Annotated[int, typer.Option(min=1, metavar="N", help="Prompts at a time.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print each row as a line of JSON.")] = False,
) -> None:
    """Answer a file of prompts with a trained model; each row comes back with its "answer" and "new_tokens".

    Example: hf-efficient generate runs/llama3.2-1b-qlora --prompts questions.jsonl --json > answers.jsonl
    """
    from hf_efficient.launch.trained import Answerer, Sampling, read_prompts
    from hf_efficient.launch.trained import generate as answers

    rows = read_prompts(prompts)
    for row in answers(Answerer(target, Sampling(max_new_tokens, temperature, top_p)), rows, system, batch_size):
        if as_json:
            print_json(json.dumps(row, ensure_ascii=False))
        else:
            print(f"> {row.get('prompt') or row['messages'][-1]['content']}\n{row['answer']}\n")


def eval(
    target: RunOrModel,
    tasks: Annotated[list[str], typer.Option(metavar="TASK", help="Task of lm-eval, or a task file; once per task.")],
    few_shot: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Examples in the prompt. Default: the task's own.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="The first N examples of each task.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, metavar="N", help="Examples at a time.")] = 8,
    chat_template: Annotated[bool, typer.Option("--chat-template", help="Prompts through the chat template.")] = False,
    base: Annotated[
        bool, typer.Option("--base/--no-base", help="Of a run: the model that it was trained from too.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON.")] = False,
) -> None:
    """Score a trained model on tasks of lm-evaluation-harness, beside the model that it was trained from.

    The numbers are the harness's own. The same examples are compared in pairs, with a test for chance.

    Example: hf-efficient eval outputs/llama3.2-1b-qlora --tasks gsm8k --tasks my_task.yaml --limit 200
    """
    from hf_efficient.launch.evaluate import Evaluation, evaluate_model
    from hf_efficient.reporting.terminal import drawn, show
    from hf_efficient.reporting.trained_model import scores_lines, scores_table

    how = Evaluation(tuple(tasks), few_shot, limit, batch_size, chat_template)
    found = evaluate_model(target, how, with_base=base)
    if as_json:
        print_json(asdict(found))
        return
    show([drawn(scores_table(found)), *scores_lines(found)])


def merge(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="Output directory of a run, or one of its checkpoints.")
    ],
    output: Annotated[Path | None, typer.Option(metavar="DIR", help="Where to write. Default: RUN_DIR/merged.")] = None,
    base: Annotated[
        Literal["dequantized", "dense"] | None,
        typer.Option(
            help="Weights to merge a QLoRA adapter into: the dequantized ones that it was trained beside "
            "(default), or the original ones, which gives another model than the one trained."
        ),
    ] = None,
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32"] | None,
        typer.Option(help="Data type to save in. Default: the base's."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Merge a trained adapter into its model, and check that the logits stay the same.

    Example: hf-efficient merge outputs/llama3.2-1b-qlora --output llama3.2-1b-merged
    """
    from hf_efficient.launch.merge import merge_run

    report = merge_run(run_dir, output, dtype, base=base)
    if as_json:
        print_json(report.to_dict())
        return
    print(f"Merged into the {report.base} base, {report.parameters:,} parameters, {report.dtype}: {report.output}")
    print(
        f"Its logits differ from the unmerged model's by {report.relative_difference:.1e} (relative; rounding "
        f"explains up to {report.tolerance:.0e}); the adapter itself moved them by {report.adapter_effect:.1e}."
    )


def export(
    target: RunOrModel,
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
    from hf_efficient.reporting.terminal import show
    from hf_efficient.reporting.trained_model import export_lines, sizes_lines

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
