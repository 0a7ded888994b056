"""The ready trainers show the arguments of the class below, at run time and to a type checker."""

import ast
import inspect
from pathlib import Path

import pytest

import hf_efficient
from hf_efficient.trainer import EfficientOptions, EfficientTrainerMixin

HOUSE = Path(hf_efficient.__file__).parent
READY = {
    "EfficientTrainer": "trainer.py",
    "EfficientSFTTrainer": "trl_trainers.py",
    "EfficientDistillationTrainer": "trl_trainers.py",
    "EfficientDPOTrainer": "trl_trainers.py",
    "EfficientGRPOTrainer": "trl_trainers.py",
    "EfficientKTOTrainer": "trl_trainers.py",
    "EfficientRewardTrainer": "trl_trainers.py",
}


def typed_arguments(file: str, name: str) -> list[str]:
    """Of ``__init__``, as the source declares it for type checkers."""
    classes = {
        one.name: one for one in ast.walk(ast.parse((HOUSE / file).read_text())) if isinstance(one, ast.ClassDef)
    }
    (init,) = (node for node in ast.walk(classes[name]) if isinstance(node, ast.FunctionDef))
    found = [argument.arg for argument in (*init.args.args, *init.args.kwonlyargs)]
    options = classes.get(ast.unparse(init.args.kwarg.annotation).removeprefix("Unpack[").removesuffix("]"))
    while options is not None and options.name != "EfficientOptions":
        found += [field.target.id for field in options.body if isinstance(field, ast.AnnAssign)]
        options = classes.get(options.bases[0].id)
    return found


@pytest.mark.parametrize("name", READY)
def test_a_ready_trainer_has_the_arguments_of_the_class_below_and_of_the_mixin(name):
    ready = getattr(hf_efficient, name)
    below = list(inspect.signature(ready.__mro__[2].__init__).parameters)
    typed = typed_arguments(READY[name], name)
    assert sorted(typed) == sorted(below)
    assert typed[:3] == below[:3]
    own = list(EfficientOptions.__annotations__)
    assert list(inspect.signature(ready).parameters) == [*below[1:], *own]
    mixin = inspect.signature(EfficientTrainerMixin.__init__).parameters.values()
    assert own == [one.name for one in mixin if one.kind is inspect.Parameter.KEYWORD_ONLY]


def test_a_class_of_ones_own_over_a_ready_trainer_keeps_its_own_signature():
    class Mine(hf_efficient.EfficientTrainer):
        def __init__(self, model, rank=4): ...

    assert list(inspect.signature(Mine).parameters) == ["model", "rank"]
