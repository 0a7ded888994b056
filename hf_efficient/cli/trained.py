"""What a trained model is used for: ``hf-efficient chat``, ``generate``, ``eval``, ``merge``, ``export``,
``push``, ``latency``."""

import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

from hf_efficient.cli import output as shared
from hf_efficient.errors import SetupError
from hf_efficient.reporting.terminal import show, table

MaxNewTokens = Annotated[int, Option(min=1, metavar="N", help="Tokens of an answer at most.")]
Temperature = Annotated[float, Option(min=0.0, help="0: the most likely token each time.")]
TopP = Annotated[float, Option(min=0.0, max=1.0, help="Draw from the likeliest tokens of this sum.")]
System = Annotated[str | None, Option(metavar="TEXT", help="The system's message, before all others.")]

_of_run = partial(Argument, metavar="RUN_DIR", callback=shared.run_folder)
_END, _RESET = "/exit", "/reset"


def chat(
    target: shared.RunOrModel,
    system: System = None,
    compare: Annotated[
        Literal["base"] | None, Option(metavar="base", help="Show the answers of a run's base model beside its own.")
    ] = None,
    max_new_tokens: MaxNewTokens = 512,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    prompts: Annotated[
        Path | None, Option(metavar="FILE", help="Answer these, each in a chat of its own, as `generate` does.")
    ] = None,
    trust_remote_code: shared.TrustRemoteCode = False,
    as_json: Annotated[bool, Option("--json", help="With --prompts: print each row as a line of JSON.")] = False,
) -> None:
    """Talk to a trained model; /reset forgets what was said, /exit ends the chat.

    Example: hf-efficient chat runs/llama3.2-1b-qlora --compare base
    """
    from rich.text import Text

    from hf_efficient.errors import DataError
    from hf_efficient.launch.trained import Answerer, Conversation, Sampling, read_prompts

    if as_json and prompts is None:
        raise SetupError("--json: a chat is no JSON. Write --prompts FILE with it.")
    rows = read_prompts(prompts) if prompts else []
    sampling = Sampling(max_new_tokens, temperature, top_p)
    answerer = Answerer(target, sampling, trust_remote_code=trust_remote_code)
    if rows:
        _print_answers(answerer, rows, system, 1, as_json=as_json, compare=compare is not None)
        return
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
    target: shared.RunOrModel,
    prompts: Annotated[
        Path, Option(metavar="FILE", help='JSONL with "prompt" or "messages" in each row, or a text file of prompts.')
    ],
    system: System = None,
    max_new_tokens: MaxNewTokens = 512,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    batch_size: Annotated[int, Option(min=1, metavar="N", help="Prompts at a time.")] = 8,
    trust_remote_code: shared.TrustRemoteCode = False,
    as_json: Annotated[bool, Option("--json", help="Print each row as a line of JSON.")] = False,
) -> None:
    """Answer a file of prompts with a trained model; each row comes back with its "answer" and "new_tokens".

    Example: hf-efficient generate runs/llama3.2-1b-qlora --prompts questions.jsonl --json > answers.jsonl
    """
    from hf_efficient.launch.trained import Answerer, Sampling, read_prompts

    rows = read_prompts(prompts)
    sampling = Sampling(max_new_tokens, temperature, top_p)
    answerer = Answerer(target, sampling, trust_remote_code=trust_remote_code)
    _print_answers(answerer, rows, system, batch_size, as_json=as_json)


def _print_answers(
    answerer: Any, rows: list[Any], system: str | None, batch_size: int, *, as_json: bool, compare: bool = False
) -> None:
    """``compare``: with the answer of the base, without the adapter, in ``base_answer``."""
    from hf_efficient.launch.trained import generate

    if compare:
        with answerer.without_adapter():
            found = list(generate(answerer, rows, system, batch_size))
        rows = [{**row, "base_answer": one["answer"]} for row, one in zip(rows, found, strict=True)]
    for row in generate(answerer, rows, system, batch_size):
        if as_json:
            shared.print_json(json.dumps(row, ensure_ascii=False))
        else:
            print(f"> {row.get('prompt') or row['messages'][-1]['content']}\n{row['answer']}\n")
            if compare:
                print(f"Without the adapter: {row['base_answer']}\n")


def eval(
    target: shared.RunOrModel,
    tasks: Annotated[list[str], Option(metavar="TASK", help="Task of lm-eval, or a task file; once per task.")],
    few_shot: Annotated[
        int | None, Option(min=0, metavar="N", help="Examples in the prompt. Default: the task's own.")
    ] = None,
    limit: Annotated[int | None, Option(min=1, metavar="N", help="The first N examples of each task.")] = None,
    batch_size: Annotated[int, Option(min=1, metavar="N", help="Examples at a time.")] = 8,
    chat_template: Annotated[bool, Option("--chat-template", help="Prompts through the chat template.")] = False,
    base: Annotated[bool, Option("--base/--no-base", help="Of a run: the model that it was trained from too.")] = True,
    trust_remote_code: shared.TrustRemoteCode = False,
    as_json: Annotated[bool, Option("--json", help="Print the scores as JSON.")] = False,
) -> None:
    """Score a trained model on tasks of lm-evaluation-harness, beside the model that it was trained from.

    The numbers are the harness's own. The same examples are compared in pairs, with a test for chance.

    Example: hf-efficient eval outputs/llama3.2-1b-qlora --tasks gsm8k --tasks my_task.yaml --limit 200
    """
    from hf_efficient.launch.evaluate import Evaluation, evaluate_model
    from hf_efficient.reporting.trained_model import scores_renderables

    how = Evaluation(tuple(tasks), few_shot, limit, batch_size, chat_template)
    found = evaluate_model(target, how, with_base=base, trust_remote_code=trust_remote_code)
    shared.print_found(found, scores_renderables, as_json=as_json)


def merge(
    run_dir: Annotated[Path, _of_run(help="Output directory of a run, or one of its checkpoints.")],
    output: Annotated[Path | None, Option(metavar="DIR", help="Where to write. Default: RUN_DIR/merged.")] = None,
    base: Annotated[
        Literal["dequantized", "dense"] | None,
        Option(
            help="Weights to merge a QLoRA adapter into: the dequantized ones that it was trained beside "
            "(default), or the original ones, which gives another model than the one trained."
        ),
    ] = None,
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32"] | None, Option(help="Data type to save in. Default: the base's.")
    ] = None,
    trust_remote_code: shared.TrustRemoteCode = False,
    as_json: Annotated[bool, Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Merge a trained adapter into its model, and check that the logits stay the same.

    Example: hf-efficient merge outputs/llama3.2-1b-qlora --output llama3.2-1b-merged
    """
    from hf_efficient.launch.merge import merge_run

    report = merge_run(run_dir, output, dtype, base=base, trust_remote_code=trust_remote_code)
    if as_json:
        shared.print_json(asdict(report) | {"output": str(report.output)})
        return
    print(f"Merged into the {report.base} base, {report.parameters:,} parameters, {report.dtype}: {report.output}")
    print(
        f"Its logits differ from the unmerged model's by {report.relative_difference:.1e} (relative; rounding "
        f"explains up to {report.tolerance:.0e}); the adapter itself moved them by {report.adapter_effect:.1e}."
    )


def export(
    target: shared.RunOrModel,
    to: Annotated[
        str,
        Option(metavar="FORM", help="merged, vllm, gguf:F16, gguf:Q8_0, gguf:Q4_K_M, ollama:Q8_0, gptq, awq or onnx."),
    ] = "gguf:Q8_0",
    output: Annotated[
        Path | None, Option(metavar="DIR", help="Where to write. Default: RUN_OR_MODEL/exports/FORM.")
    ] = None,
    plan: Annotated[bool, Option("--plan", help="Print the sizes of all forms; load and write nothing.")] = False,
    prompts: Annotated[
        Path | None,
        Option(metavar="FILE", help="Prompts to compare on, as for `generate`. Default: fifty short questions."),
    ] = None,
    limit: Annotated[int | None, Option(min=1, metavar="N", help="The first N prompts.")] = None,
    max_new_tokens: Annotated[int, Option(min=1, metavar="N", help="Tokens of each compared answer.")] = 32,
    evaluate: Annotated[
        int, Option(min=0, metavar="N", help="Of a run: the first N of the recipe's evaluation examples; 0: none.")
    ] = 64,
    python: Annotated[
        Path | None, Option(metavar="FILE", help="For gptq and awq: the Python of an environment with GPTQModel.")
    ] = None,
    trust_remote_code: shared.TrustRemoteCode = False,
    as_json: Annotated[bool, Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Write a trained model as safetensors, GGUF, GPTQ, AWQ or ONNX, or for Ollama or vLLM.

    The export is read back and compared with the trained model before it stands: on greedy answers, and on the
    recipe's evaluation data.

    Example: hf-efficient export runs/llama3.2-1b-qlora --to gguf:Q8_0
    """
    from hf_efficient.export.agreement import QUESTIONS
    from hf_efficient.export.export import export_run, export_sizes, parse_form
    from hf_efficient.launch.trained import read_prompts
    from hf_efficient.reporting.trained_model import export_lines, sizes_lines

    form = parse_form(to)
    if plan:
        sizes = export_sizes(target, trust_remote_code=trust_remote_code)
        if as_json:
            shared.print_json({"model": target, "predicted_bytes": sizes})
        else:
            show(sizes_lines(sizes))
        return
    asked = [row.get("messages") or row["prompt"] for row in read_prompts(prompts)] if prompts else list(QUESTIONS)
    how: Any = {"questions": asked[:limit], "max_new_tokens": max_new_tokens, "evaluate": evaluate, "python": python}
    path, report = export_run(target, form, output, **how, trust_remote_code=trust_remote_code)
    shared.print_found(report, partial(export_lines, path), as_json=as_json, output=str(path))


def push(
    run_dir: Annotated[Path, _of_run(help="Output directory of a run, a checkpoint, or `merged`.")],
    to: Annotated[str, Option(metavar="NAME", help="The repository, as YOUR_NAME/MODEL_NAME.")],
    private: Annotated[bool, Option("--private", help="Where the repository is new: only you see it.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Print the files and the card; upload nothing.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print what was uploaded as JSON.")] = False,
) -> None:
    """Upload a run's model to the hub, with a card that has its figures and scores.

    Weights, configuration and tokenizer go up. Records, prices, host names, paths and optimizer states stay here.

    Example: hf-efficient push outputs/my --to me/my-model --private
    """
    from hf_efficient.launch.card import push as upload
    from hf_efficient.text import counted, size

    found = upload(run_dir, to, private=private, dry_run=dry_run)
    if as_json:
        shared.print_json(asdict(found))
        return
    if dry_run:
        print(found.card)
    done = f"Uploaded to {found.url}" if found.url else f"Would go to {found.repository}"
    print(f"{done}: README.md and {counted(len(found.files), 'file')}, {size(found.bytes)}: {', '.join(found.files)}")


def latency(
    models: Annotated[
        list[str], Argument(metavar="MODEL...", help="Runs, folders, hub names, GGUF files, or URLs of servers (/v1).")
    ],
    prompt_tokens: Annotated[str, Option(metavar="N,N", help="Lengths of prompts.")] = "128",
    new_tokens: Annotated[str, Option(metavar="N,N", help="Lengths of answers.")] = "64",
    at_a_time: Annotated[str, Option(metavar="N,N", help="Requests answered at once.")] = "1,2,4",
    seconds: Annotated[float, Option(metavar="S", help="Time for the requests of each point.")] = 5.0,
    price: Annotated[float | None, Option(metavar="USD", help="Of the machine per hour, for the cost.")] = None,
    server_model: Annotated[str | None, Option(metavar="NAME", help="Of a server. Default: its first one.")] = None,
    html: Annotated[Path | None, Option(metavar="FILE", help="Write a page with the curves.")] = None,
    trust_remote_code: shared.TrustRemoteCode = False,
    as_json: Annotated[bool, Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure how fast models answer: first token, time between tokens, whole answers, tokens/s, memory, energy, cost.

    A run or a folder is asked through transformers, a GGUF file through llama.cpp, a URL as a server of OpenAI's form.
    Each model has a process of its own; a first request at each point is left out. Answers have exactly that length.

    Example: hf-efficient latency outputs/my outputs/my/exports/gguf-Q8_0/my-Q8_0.gguf --at-a-time 1,4 --price 1.29
    """
    for name in models:
        shared.run_or_model(name)
    from hf_efficient.export.latency import Load
    from hf_efficient.export.latency import latency as measure
    from hf_efficient.reporting.html.compare_page import latency_page
    from hf_efficient.reporting.trained_model import latency_renderables

    shared.check_file("--html", html, shared.PAGE)
    load = Load(
        prompt_tokens=_numbers("--prompt-tokens", prompt_tokens),
        new_tokens=_numbers("--new-tokens", new_tokens),
        at_a_time=_numbers("--at-a-time", at_a_time),
        seconds=seconds,
        price_usd_per_hour=price,
        server_model=server_model,
        trust_remote_code=trust_remote_code,
    )
    found = measure(models, load, lambda name: print(f"{name} ...", file=sys.stderr))
    if html is not None:
        page = latency_page(found, shared.command_line())
        shared.write_page(html, html, lambda: page, sys.stderr)
    shared.print_found(found, latency_renderables, as_json=as_json)


def _numbers(flag: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise SetupError(f"{flag}: {text!r} is no list of whole numbers. Write 1,2,4, for instance.")
    return tuple(map(int, parts))
