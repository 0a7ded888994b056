"""``hf-efficient generate``: the answers of a trained model to a file of prompts."""

import json
from pathlib import Path
from typing import Annotated

import typer

from hf_efficient.cli.chat import MaxNewTokens, System, Target, Temperature, TopP
from hf_efficient.cli.output import print_json


def generate(
    target: Target,
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
