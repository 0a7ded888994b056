"""``hf-efficient chat``: talk to a trained model."""

from enum import Enum
from typing import Annotated

import typer


class _Other(str, Enum):
    base = "base"


Target = Annotated[
    str, typer.Argument(metavar="RUN_OR_MODEL", help="Output directory of a run, a model's folder or its hub name.")
]
MaxNewTokens = Annotated[int, typer.Option(min=1, metavar="N", help="Tokens of an answer at most.")]
Temperature = Annotated[float, typer.Option(min=0.0, help="0: the most likely token each time.")]
TopP = Annotated[float, typer.Option(min=0.0, max=1.0, help="Draw from the likeliest tokens of this sum.")]
System = Annotated[str | None, typer.Option(metavar="TEXT", help="The system's message, before all others.")]

_END, _RESET = "/exit", "/reset"


def chat(
    target: Target,
    system: System = None,
    compare: Annotated[
        _Other | None, typer.Option(metavar="base", help="Show the answers of a run's base model beside its own.")
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
