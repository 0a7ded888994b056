"""No input makes the loader do anything but resolve or raise ``RecipeError``."""

import tempfile
from pathlib import Path

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_efficient.errors import Problem, RecipeError
from hf_efficient.recipe.load import load_recipe
from hf_efficient.recipe.schema import Recipe

BASE = """\
name: tiny
objective: sft
model: {id: some/model, dtype: bfloat16}
adapter:
  method: qlora
  target_modules: [q_proj, v_proj]
  quantization: {bits: 4, type: nf4}
data:
  train:
    - {path: chats.jsonl, columns: {prompt: question}}
    - path: more.jsonl
      weight: 2
  eval_fraction: 0.1
train:
  learning_rate: 2e-4
  packing: true
  eval_strategy: steps
  gradient_checkpointing_kwargs: {use_reentrant: false}
evaluate: {metrics: [perplexity], early_stopping: {patience: 2}}
distributed: {processes: auto}
output_dir: out
"""

# fmt: off
TOKENS = [
    "a", "train", "adapter", "extends", "name", "data", "path", "model", "r", "0", "1", "-1", "2e-4", ".nan", ".inf",
    "true", "no", "null", "~", "'", '"', "|", ">", ">-2", "&x", "*x", "<<", "!!python/object/apply:os.system", "!t",
    "%YAML 1.1", "---", "...", "#", "@", "`", ":", ": ", "- ", "? ", ", ", "{", "}", "[", "]", "\n", "\n  ", "\t",
    "=", ".", "..", "\\", '"\\x00"', '"\\ud800"', "\x00", "\x85", "\u2028", "\ufeff", "٣", "²", "9" * 30, "r.yaml",
]
# fmt: on
WORDS = st.lists(st.sampled_from(TOKENS), max_size=25).map("".join)
VALUES = st.sampled_from(
    ["", "1", "-1", "1.5", "true", "null", "x", "[]", "{}", "[1]", "{a: 1}", "'3'", ".inf", "sft", "dpo"]
)
KEYS = st.sampled_from(sorted({"data.train.0", "data.train.2.path", "train", "adapter", "x", *Recipe.model_fields}))
OVERRIDES = st.lists(
    st.tuples(KEYS, VALUES).map("=".join)
    | st.tuples(WORDS, WORDS).map("=".join)
    | st.text(max_size=20)
    | st.tuples(KEYS, st.sampled_from(["id", "r", "0", "eval", "packing", "learning_rate", "²"]), VALUES).map(
        lambda parts: f"{parts[0]}.{parts[1]}={parts[2]}"
    ),
    max_size=3,
)


def resolves_or_says_why(content: bytes, overrides: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r.yaml"
        path.write_bytes(content)
        problems: tuple[Problem, ...] = ()
        recipe = None
        try:
            recipe = load_recipe(path, overrides)
        except RecipeError as error:
            problems = error.problems
        assert (recipe is None) == bool(problems)
        assert all(problem.where and problem.message for problem in problems)
        assert list(Path(folder).iterdir()) == [path]


@given(
    st.lists(st.tuples(st.integers(0, len(BASE)), st.integers(0, 12), st.sampled_from(TOKENS)), min_size=1, max_size=4),
    OVERRIDES,
)
@settings(deadline=None, max_examples=100)
def test_a_valid_recipe_with_pieces_replaced(edits, overrides):
    text = BASE
    for start, length, token in edits:
        text = text[:start] + token + text[start + length :]
    resolves_or_says_why(text.encode("utf-8", "surrogatepass"), overrides)


ANYTHING = st.none() | st.booleans() | st.floats() | st.text("ab\n:{", max_size=5)
ANYTHING |= st.lists(ANYTHING, max_size=3) | st.dictionaries(st.sampled_from(["id", "path", "r"]), ANYTHING, max_size=3)


@given(st.dictionaries(st.sampled_from([*Recipe.model_fields, "extends", "x"]), ANYTHING, max_size=6), st.booleans())
@settings(deadline=None, max_examples=100)
def test_any_data_in_any_section(sections, complete):
    data = {**(yaml.safe_load(BASE) if complete else {}), **sections}
    resolves_or_says_why(yaml.safe_dump(data).encode(), [])


def test_the_recipe_that_is_mutated_is_valid_itself(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(BASE.replace("early_stopping: {patience: 2}", "at_end: true"), encoding="utf-8")
    assert load_recipe(path).name == "tiny"
