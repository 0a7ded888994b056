"""TRL's own tests of its trainers, with its classes and with the mixin over them: outcomes and weights must agree.

    git clone https://github.com/huggingface/trl
    python benchmarks/trl_own_tests.py trl --json benchmarks/results/trl_own_tests.json

No hub is needed. TRL's scripts, which write its tiny models and data sets to the hub, write to a folder here. Their
tokenizers and the configurations of large models are stand-ins: the shapes are TRL's, the words are not.
"""

import argparse
import datetime
import gc
import importlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from own_tests import byte_tokenizer, compared, put_in_cache
from shared import write_result

TRAINERS = {"sft": "SFTTrainer", "dpo": "DPOTrainer", "reward": "RewardTrainer", "kto": "KTOTrainer",
            "grpo": "GRPOTrainer"}  # fmt: skip
# Model on the hub: TRL's chat template, end of a turn, padding.
TOKENIZERS = {
    r"Qwen/Qwen2\.5-VL": ("qwen2_5_vl", "<|im_end|>", "<|endoftext|>"),
    r"Qwen/Qwen2\.5": ("qwen2_5", "<|im_end|>", "<|endoftext|>"),
    r"Qwen/Qwen2-VL": ("qwen2_5_vl", "<|im_end|>", "<|endoftext|>"),
    r"Qwen/Qwen3-VL": ("qwen3_vl", "<|im_end|>", "<|endoftext|>"),
    r"Qwen/Qwen3\.5-0": ("qwen3_5_nothink", "<|im_end|>", "<|endoftext|>"),
    r"Qwen/Qwen3\.5": ("qwen3_5_think", "<|im_end|>", "<|endoftext|>"),
    r"Qwen/Qwen3\.6": ("qwen3_6", "<|im_end|>", "<|endoftext|>"),
    r"Qwen/Qwen3.*2507": ("qwen3_instruct_2507", "<|im_end|>", "<|endoftext|>"),
    r"Qwen/Qwen3": ("qwen3", "<|im_end|>", "<|endoftext|>"),
    r"Llama-3\.1": ("llama3_1", "<|eot_id|>", None),
    r"Llama-3\.2": ("llama3_2", "<|eot_id|>", None),
    r"Meta-Llama-3-": ("llama3", "<|eot_id|>", None),
    r"Idefics3": ("idefics3", "<end_of_utterance>", "<|end_of_text|>"),
    r"LFM2\.5": ("lfm2_2_5", "<|im_end|>", "<|pad|>"),
    r"LFM2": ("lfm2", "<|im_end|>", "<|pad|>"),
    r"gemma-4": ("gemma4", "<turn|>", "<pad>"),
    r"gemma-3": ("gemma3", "<end_of_turn>", "<pad>"),
    r"gemma": ("gemma", "<eos>", "<pad>"),
    r"aya-expanse": ("cohere", "<|END_OF_TURN_TOKEN|>", "<PAD>"),
    r"tiny-aya": ("cohere2", "<|END_OF_TURN_TOKEN|>", "<PAD>"),
    r"GLM": ("glm4moe", "<|endoftext|>", "<|pad|>"),
    r"gpt-oss": ("gptoss", "<|return|>", "<|endoftext|>"),
    r"Phi-3\.5": ("phi3_5", "<|end|>", "<|endoftext|>"),
    r"Phi-3": ("phi3", "<|end|>", "<|endoftext|>"),
    r"DeepSeek": ("deepseekv3", "<｜end▁of▁sentence｜>", None),
    r"SmolVLM": ("smolvlm", "<end_of_utterance>", "<|im_end|>"),
    r"llava-v1\.6": ("llava_next", "</s>", "<pad>"),
    r"Nemotron": ("nemotron_3_nano", "<|im_end|>", None),
    r"": (None, "</s>", None),
}
SPECIAL = re.compile(r"<\|[^|<>' ]{1,40}\|>|<｜[^｜<>]{1,40}｜>|</?[a-z_]{1,20}>|\[/?[A-Z_]{2,20}\]")
KINDS = {
    "Idefics3": "idefics3", "pythia": "gpt_neox", "Llama": "llama", "Qwen2.5-32B": "qwen2", "Qwen3-30B": "qwen3_moe",
    "Qwen3-4B": "qwen3", "llava-1.5": "llava", "llava-v1.6": "llava_next", "gemma-3-4b": "gemma3",
}  # fmt: skip
TEXT_OF = {"llava": "llama", "llava_next": "mistral", "gemma3": "gemma3_text", "idefics3": "llama"}
VISION_OF = {"llava": "clip_vision_model", "llava_next": "clip_vision_model", "gemma3": "siglip_vision_model",
             "idefics3": "idefics3_vision"}  # fmt: skip
GEMMA_TOKENS = {"boi_token": "<start_of_image>", "image_token": "<image_soft_token>", "eoi_token": "<end_of_image>"}
IMAGE_TOKENS = {
    "llava": {"image_token_index": "<image>"}, "llava_next": {"image_token_index": "<image>"},
    "gemma3": {f"{name}_index": token for name, token in GEMMA_TOKENS.items()},
    "idefics3": {"image_token_id": "<image>"},
}  # fmt: skip
TILES = [[28, 56], [56, 28]]
# Qwen's processor needs torchvision, so its tests take another model; the second name is no longer built.
INSTEAD = {
    "tiny-Qwen2_5_VLForConditionalGeneration": "tiny-Idefics3ForConditionalGeneration",
    "tiny-Phi3ForCausalLM": "tiny-Phi3ForCausalLM-3.5",
}
LLAVA = (
    "{% for message in messages %}{{ message['role'].upper() + ': ' }}{% if message['content'] is string %}"
    "{{ message['content'] + ' ' }}{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "{{ '<image>\n' }}{% else %}{{ part['text'] + ' ' }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
MODELS = ("for_causal_lm", "for_conditional_generation", "for_sequence_classification")


def tokenizer_of(model_id: str, words: list[str]) -> Any:
    """A tokenizer with the special tokens of TRL's chat template for this model."""
    import trl

    name, end, pad = next(value for key, value in TOKENIZERS.items() if re.search(key, model_id))
    template = (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text() if name else None
    more = ["<image>", "<fake_token_around_image>", "<global-img>", "<row_1_col_1>", *GEMMA_TOKENS.values()]
    special = list(dict.fromkeys([end, pad or end, "<s>", *SPECIAL.findall(template or ""), *more]))
    named = GEMMA_TOKENS if name == "gemma3" else None
    tokenizer = byte_tokenizer(words, special, eos_token=end, pad_token=pad or end, extra_special_tokens=named)
    tokenizer.chat_template = template
    return tokenizer


class Hub:
    """Takes what TRL's scripts upload, in the layout of the hub's cache, and gives them what they ask the hub for."""

    def __init__(self, clone: Path, folder: Path) -> None:
        self.folder = folder
        self.words = (clone / "README.md").read_text().split("\n")

    def take_model(
        self, model: Any, tokenizer: Any, generation: Any, prefix: str = "", suffix: str | None = None
    ) -> None:
        name = f"{prefix}-{type(model).__name__}" + (f"-{suffix}" if suffix else "")
        put_in_cache(self.folder / "hub", f"trl-internal-testing/{name}", model, tokenizer, generation)

    def take_data(self, data: Any, name: str, config_name: str = "default") -> None:
        for split, rows in data.items():
            path = self.folder / "data" / name / config_name / f"{split}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            rows.to_parquet(path)

    def tokenizer(self, model_id: str, **_: Any) -> Any:
        return tokenizer_of(model_id, self.words)

    def generation(self, model_id: str, **_: Any) -> Any:
        from transformers import GenerationConfig

        words = self.tokenizer(model_id)
        return GenerationConfig(eos_token_id=words.eos_token_id, pad_token_id=words.pad_token_id, do_sample=True)

    def config(self, model_id: str, **changes: Any) -> Any:
        from transformers import AutoConfig

        kind = next((value for key, value in KINDS.items() if key in model_id), None)
        if kind is None:
            raise LookupError(f"no stand-in for {model_id}")
        words = self.tokenizer(model_id)
        if "text_config" not in changes:
            given = {"vocab_size": len(words), "pad_token_id": words.pad_token_id, **changes}
            return AutoConfig.for_model(kind, **given)
        text = {"model_type": TEXT_OF[kind], "intermediate_size": 32, "pad_token_id": words.pad_token_id}
        changes["text_config"] = {**text, "vocab_size": len(words), **changes["text_config"]}
        vision = {"model_type": VISION_OF[kind], "intermediate_size": 32, "image_size": 28, "patch_size": 14}
        changes["vision_config"] = {**vision, **changes["vision_config"]}
        tokens = {name: words.convert_tokens_to_ids(token) for name, token in IMAGE_TOKENS[kind].items()}
        if kind == "gemma3":
            changes["vision_config"]["vision_use_head"] = False
        tiles = {"image_grid_pinpoints": TILES} if kind == "llava_next" else {}
        return AutoConfig.for_model(kind, **tokens, **tiles, **changes)

    def processor(self, model_id: str) -> Any:
        import transformers as hf

        images: Any
        words = self.tokenizer(model_id)
        if "gemma-3-4b" in model_id:
            images = hf.Gemma3ImageProcessorPil(size={"height": 224, "width": 224})
            return hf.Gemma3Processor(images, words, chat_template=words.chat_template)
        if "Idefics3" in model_id:
            images = hf.Idefics3ImageProcessorPil(size={"longest_edge": 28}, max_image_size={"longest_edge": 28})
            return hf.Idefics3Processor(images, words, image_seq_len=1, chat_template=words.chat_template)
        if "llava" not in model_id:
            raise LookupError(f"no stand-in for {model_id}")
        more = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
        size = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
        if "v1.6" in model_id:
            images = hf.LlavaNextImageProcessorPil(**size, image_grid_pinpoints=TILES)
            return hf.LlavaNextProcessor(images, words, chat_template=words.chat_template, **more)
        return hf.LlavaProcessor(hf.CLIPImageProcessorPil(**size), words, chat_template=LLAVA, **more)


def build(clone: Path, folder: Path) -> list[str]:
    """Run TRL's scripts; returns those that need more of the hub than a stand-in gives, with the reason."""
    import datasets
    import transformers as hf

    hub = Hub(clone, folder)
    data: Any = datasets.DatasetDict
    data.push_to_hub = lambda self, name, config_name="default": hub.take_data(self, name, config_name)
    stand_ins = {"AutoTokenizer": hub.tokenizer, "GenerationConfig": hub.generation}
    for name, stand_in in {**stand_ins, "AutoConfig": hub.config, "AutoProcessor": hub.processor}.items():
        setattr(getattr(hf, name), "from_pretrained", stand_in)  # noqa: B010  mypy knows the methods
    for name in ("Phi3Config", "Olmo3Config"):  # they name a padding token beyond a small vocabulary
        kind = getattr(hf, name)
        kind.__init__ = lambda self, *, init=kind.__init__, **given: init(self, **{**given, "pad_token_id": 0})
    sys.path.append(str(clone))  # last: its trl is not the installed one
    common: Any = importlib.import_module("scripts.generate_tiny_models._common")
    for name in ("check_transformers_version", "check_dtype_pattern", "print_config_diff", "smoke_test"):
        setattr(common, name, lambda *_, **__: None)
    common.push_to_hub = hub.take_model
    for script in sorted((clone / "scripts").glob("generate_*_dataset.py")):
        runpy.run_path(str(script))["main"](0.1, True, "trl-internal-testing/" + script.stem[9:-8].replace("_", "-"))
    lacking = []
    for task in MODELS:
        for script in sorted((clone / "scripts" / "generate_tiny_models" / task).glob("[!_]*.py")):
            try:
                runpy.run_module(f"scripts.generate_tiny_models.{task}.{script.stem}")
            except (AssertionError, LookupError, OSError) as error:
                lacking.append(f"{script.stem}: {str(error).splitlines()[0]}")
    for name, other in INSTEAD.items():
        cached = folder / "hub" / f"models--trl-internal-testing--{name}"
        if not cached.exists():
            shutil.copytree(folder / "hub" / f"models--trl-internal-testing--{other}", cached)
    return lacking


def pytest_configure() -> None:
    """As a plugin of TRL's tests: the data sets of the folder, and in an arm "mixin" our classes for TRL's."""
    import datasets
    import trl

    folder, plain = Path(os.environ["TRL_STAND_INS"]) / "data", datasets.load_dataset

    def load(name: str, config: str = "default", **options: Any) -> Any:
        files = {path.stem: str(path) for path in sorted((folder / name / config).glob("*.parquet"))}
        return plain("parquet", data_files=files, **options) if files else plain(name, config, **options)

    datasets.load_dataset = load
    if os.environ["OWN_TESTS_ARM"] == "mixin":
        from hf_efficient import EfficientTrainerMixin

        for name in TRAINERS.values():
            mixed = type(name, (EfficientTrainerMixin, getattr(trl, name)), {"__module__": "trl"})
            setattr(trl, name, mixed)


@pytest.fixture
def lazy_shared_datadir() -> Path:
    """In place of that of pytest-datadir, for tests that only read."""
    return Path("tests", "data").resolve()


def pytest_collection_finish() -> None:
    """TRL collects garbage after each test: not again what was imported."""
    gc.freeze()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path, help="a clone of huggingface/trl")
    parser.add_argument("--only", nargs="*", default=list(TRAINERS), choices=list(TRAINERS))
    parser.add_argument("--folder", type=Path, help="keep stand-ins and outcomes here, and take those that are there")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    started = datetime.datetime.now(datetime.timezone.utc)
    with tempfile.TemporaryDirectory() as scratch:
        folder = (given.folder or Path(scratch)).resolve()
        if not (folder / "lacking.json").is_file():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "lacking.json").write_text(json.dumps(build(given.clone.resolve(), folder)))
        commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=given.clone, text=True).strip()
        lacking = json.loads((folder / "lacking.json").read_text())
        figures: dict[str, Any] = {"trl_commit": commit, "without_stand_in": lacking}
        for name in given.only:
            file, stand_ins = f"tests/test_{name}_trainer.py", {"TRL_STAND_INS": str(folder)}
            figures[name] = compared(file, given.clone.resolve(), folder, "trl_own_tests", stand_ins)
            print(name, {key: value for key, value in figures[name].items() if key != "failed_without_it"})
            if given.json is not None:
                write_result(given.json, "trl_own_tests", started, figures, ("transformers", "pytest"))


if __name__ == "__main__":
    main()
