"""The tiny model of the test suite, for the Python blocks."""

from tests.conftest import tiny_llama_dir, tiny_tokenizer

__all__ = ["tiny_llama_dir", "tiny_tokenizer"]
