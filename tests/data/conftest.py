"""A tokenizer that a test may change."""

import copy

import pytest


@pytest.fixture
def tokenizer(tiny_tokenizer):
    return copy.deepcopy(tiny_tokenizer)
