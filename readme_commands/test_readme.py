"""What README and docs show, run as it stands there: the quickstart, the commands, the Python blocks.

Run after the other tests (``make test``), since the quickstart takes minutes on two cores.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hf_efficient.data.docstrings import docstring_split

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = README + "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
COMMANDS = re.search(r"<!-- commands: run by the tests -->\n```bash\n(.*?)```", README, re.DOTALL)
RECIPE = re.search(r"```yaml\n(# my-qlora.yaml\n.*?)```", README, re.DOTALL)
PYTHON_BLOCKS = re.findall(r"<!-- python: run by the tests -->\n```python\n(.*?)```", DOCS, re.DOTALL)

# The line of a block that says which model it uses; the tests put a tiny one in its place.
MODEL_LINE = re.compile(r'^MODEL = "meta-llama/.*$', re.MULTILINE)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder that sees the checkout's recipes, as a reader's own folder would not: outputs go here."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "recipes").symlink_to(ROOT / "recipes")
    return folder


def run(command: list[str], cwd: Path, timeout: int = 1800) -> subprocess.CompletedProcess[str]:
    scripts = str(Path(sys.executable).parent)
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment = {**inherited, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout)


def test_the_quickstart_learns():
    """`make quickstart`, and what plain transformers and PEFT make of the adapter that it saved."""
    done = run(["make", "quickstart"], ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    output = ROOT / "outputs/quickstart-qlora"
    before, after = plain_losses(output)
    print(f"plain transformers and PEFT: {before:.3f} before, {after:.3f} after")
    assert after <= 0.85 * before


def plain_losses(adapter: Path, examples: int = 96, batch_size: int = 8) -> tuple[float, float]:
    """Token-weighted loss on the completions of the held-out split, without and with the adapter.

    On the base that the adapter was trained beside, as its model card says: NF4 with double quantization.
    """
    import torch
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoTokenizer, BitsAndBytesConfig

    quantization = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,  # what every CPU is fast in, whatever the card's own is
    )
    options = {"quantization_config": quantization, "dtype": torch.float32}
    model = AutoPeftModelForCausalLM.from_pretrained(adapter, **options).eval()
    tokenizer = AutoTokenizer.from_pretrained(adapter)
    rows = sorted(
        (tokenized(tokenizer, row) for row in docstring_split("eval")[:examples]), key=lambda row: len(row[0])
    )
    total, count = {"with": 0.0, "without": 0.0}, 0
    for start in range(0, len(rows), batch_size):
        batch = padded(rows[start : start + batch_size])
        tokens = int((batch["labels"][:, 1:] != -100).sum())
        count += tokens
        with torch.no_grad():
            total["with"] += model(**batch).loss.item() * tokens
            with model.disable_adapter():
                total["without"] += model(**batch).loss.item() * tokens
    return total["without"] / count, total["with"] / count


def tokenized(tokenizer, row) -> tuple[list[int], list[int]]:
    """Ids of the chat, and labels that bear loss on the completion alone."""
    chat = row["prompt"] + row["completion"]
    prompt = tokenizer.apply_chat_template(chat[:-1], add_generation_prompt=True, return_dict=True)["input_ids"]
    ids = tokenizer.apply_chat_template(chat, return_dict=True)["input_ids"][:256]
    return ids, [-100] * len(prompt) + ids[len(prompt) :]


def padded(rows):
    """A batch of rows, padded on the right."""
    import torch

    longest = max(len(ids) for ids, _ in rows)
    return {
        "input_ids": torch.tensor([ids + [2] * (longest - len(ids)) for ids, _ in rows]),
        "attention_mask": torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in rows]),
        "labels": torch.tensor([labels + [-100] * (longest - len(labels)) for _, labels in rows]),
    }


def test_the_commands(checkout: Path):
    assert COMMANDS is not None
    lines = [line for line in COMMANDS.group(1).splitlines() if not line.startswith("#")]
    assert len(lines) >= 9
    for line in lines:
        done = run(shlex.split(line), checkout)
        assert done.returncode == 0, f"$ {line}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr, f"$ {line}\n{done.stderr}"
    assert (checkout / "outputs/short/merged/model.safetensors").is_file()


@pytest.mark.parametrize("index", range(len(PYTHON_BLOCKS)))
def test_the_python_blocks(index: int, checkout: Path, tiny_llama_dir: Path):
    code, _ = MODEL_LINE.subn(f"MODEL = {str(tiny_llama_dir)!r}", PYTHON_BLOCKS[index])
    done = run([sys.executable, "-c", code], checkout)
    assert done.returncode == 0, done.stderr


def test_there_are_python_blocks_and_those_with_a_model_name_it():
    assert len(PYTHON_BLOCKS) == 3
    assert [len(MODEL_LINE.findall(block)) for block in PYTHON_BLOCKS] == [1, 0, 1]


def test_the_recipe_is_valid_in_any_folder(tmp_path: Path):
    assert RECIPE is not None
    (tmp_path / "my-qlora.yaml").write_text(RECIPE.group(1), encoding="utf-8")
    (tmp_path / "data").mkdir()
    chat = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
    (tmp_path / "data/chats.jsonl").write_text(json.dumps(chat) + "\n", encoding="utf-8")
    done = run(["hf-efficient", "validate", "my-qlora.yaml"], tmp_path)
    read = "data.train.0: data/chats.jsonl: read the only row, format messages"
    assert (done.returncode, done.stdout) == (0, f"ok: my-qlora (sft, qlora)\n{read}\n"), done.stderr


LINKS = re.compile(r"\]\((?!https?://)([^)#]*)(#[^)]*)?\)")
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/*.md", "labs/*.md", "labs/*.ipynb", "benchmarks/*.md")
    for page in ROOT.glob(pattern)
)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code-hosting pages make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path):
    for name, anchor in LINKS.findall(page.read_text(encoding="utf-8")):
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name}: {name}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {name}{anchor}"


def test_the_readme_stays_short():
    assert len(README.splitlines()) <= 200
