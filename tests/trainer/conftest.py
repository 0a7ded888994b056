from __future__ import annotations

import pytest
from tiny_training import save_tiny_model


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory, tiny_tokenizer):
    """A two-layer random Llama of width 64, saved with its tokenizer."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), tiny_tokenizer)
