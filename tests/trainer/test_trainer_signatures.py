"""The ready trainers show the arguments of the class below; ``EfficientTrainer`` to a type checker too."""

import ast
import inspect

import pytest
from transformers import Trainer

import hf_efficient
from hf_efficient.trainer import EfficientOptions, EfficientTrainerMixin

READY = [name for name in hf_efficient.__all__ if name.endswith("Trainer")]


@pytest.mark.parametrize("name", READY)
def test_a_ready_trainer_has_the_arguments_of_the_class_below_and_of_the_mixin(name):
    ready = getattr(hf_efficient, name)
    below = list(inspect.signature(ready.__mro__[2].__init__).parameters)
    own = list(EfficientOptions.__annotations__)
    assert list(inspect.signature(ready).parameters) == [*below[1:], *own]
    mixin = inspect.signature(EfficientTrainerMixin.__init__).parameters.values()
    assert own == [one.name for one in mixin if one.kind is inspect.Parameter.KEYWORD_ONLY]


def test_a_type_checker_sees_the_arguments_of_trainer():
    tree = ast.parse(inspect.getsource(hf_efficient.EfficientTrainer))
    (init,) = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    typed = [argument.arg for argument in (*init.args.args, *init.args.kwonlyargs)]
    assert typed == list(inspect.signature(Trainer.__init__).parameters)


def test_a_class_of_ones_own_over_a_ready_trainer_keeps_its_own_signature():
    class Mine(hf_efficient.EfficientTrainer):
        def __init__(self, model, rank=4): ...

    assert list(inspect.signature(Mine).parameters) == ["model", "rank"]
