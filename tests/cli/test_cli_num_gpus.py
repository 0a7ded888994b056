"""``--num-gpus``, another word for ``distributed.processes``."""

from __future__ import annotations

import pytest

from hf_efficient.cli.plan import with_num_gpus
from hf_efficient.errors import SetupError


def test_it_is_an_override():
    assert with_num_gpus(["train.max_steps=3"], 8) == ["train.max_steps=3", "distributed.processes=8"]
    assert with_num_gpus(["train.max_steps=3"], None) == ["train.max_steps=3"]
    assert with_num_gpus(["distributed.processes=8"], 8)[-1] == "distributed.processes=8"


@pytest.mark.parametrize(
    ("overrides", "number", "told"),
    [
        ([], 0, "--num-gpus: 0 cannot train. Write the number of GPUs, 1 or more."),
        (
            ["distributed.processes=2"],
            4,
            "--num-gpus: is 4, but distributed.processes=2 was written as well. Write one of them.",
        ),
    ],
)
def test_what_is_refused(overrides, number, told):
    with pytest.raises(SetupError) as error:
        with_num_gpus(overrides, number)
    assert str(error.value) == told
