"""``hf-efficient eval``: benchmark tasks on a trained model, before and after."""

from dataclasses import asdict
from typing import Annotated

import typer

from hf_efficient.cli.output import print_json


def eval(
    target: Annotated[
        str, typer.Argument(metavar="RUN_OR_MODEL", help="Output directory of a run, a model's folder or its hub name.")
    ],
    tasks: Annotated[
        list[str], typer.Option("--tasks", metavar="TASK", help="Task of lm-eval, or a task file; once per task.")
    ],
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
    from hf_efficient.reporting.task_scores import scores_lines, scores_table
    from hf_efficient.reporting.terminal import drawn, show

    how = Evaluation(tuple(tasks), few_shot, limit, batch_size, chat_template)
    found = evaluate_model(target, how, with_base=base)
    if as_json:
        print_json(asdict(found))
        return
    show([drawn(scores_table(found)), *scores_lines(found)])
