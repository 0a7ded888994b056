"""The same chats, model, adapter and optimizer in our recipe, in TRL's ``SFTTrainer``, and in a loop by hand.

    python benchmarks/peers.py --data CHATS --model FOLDER [--only trl,recipe] [--qlora] [--rounds 5] [--json FILE]

CHATS is JSONL with ``messages``, or with ``question`` and ``answer``. ``--qlora``: the base in 4-bit NF4. Each arm
trains in a process of its own; the order alternates. A step counts from its start to its end; the first three are left
out. Tokens are those without padding. An arm without gradients, or whose loss does not fall, is refused.
"""

import argparse
import datetime
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from overhead_summary import alternating_orders
from shared import load_average, write_result

from hf_efficient.estimate.statistics import median_spread

WARM_UP = 3
RANK, ALPHA, RATE, LENGTH, ROWS, BATCH = 16, 32, 2e-4, 512, 4, 8

ARMS = {
    "trl": "SFTTrainer as it comes: 8 chats a step, padded",
    "trl_packed": "SFTTrainer, packed rows of 512 tokens, 4 a step, its chunked loss",
    "recipe_plain": "hf-efficient train, packed, no fast key",
    "recipe": "hf-efficient train, packed, its fast keys on auto",
    "loop": "a loop by hand over packed rows, with the recipe's layers and no Trainer",
}
FAST = {"model.attn_implementation": "auto", "adapter.fused": "auto", "train.loss_type": "auto"}


def chats(path: Path, most: int) -> list[dict[str, Any]]:
    """Rows with ``messages``."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines()[:most]:
        row = json.loads(line)
        found.append({"messages": row.get("messages") or _messages(row["question"], row["answer"])})
    return found


def _messages(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


class Work(NamedTuple):
    """What every arm trains."""

    rows: list[dict[str, Any]]
    model: str
    steps: int
    folder: Path
    qlora: bool


def by_trl(work: Work, *, packed: bool) -> dict[str, Any]:
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    batches: dict[str, Any] = {"packing": True, "max_length": LENGTH, "per_device_train_batch_size": ROWS}
    args = SFTConfig(
        str(work.folder / "trl"),
        max_steps=work.steps,
        learning_rate=RATE,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        seed=42,
        bf16=True,
        use_cpu=not torch.cuda.is_available(),
        gradient_checkpointing=False,
        disable_tqdm=True,
        **batches if packed else {"per_device_train_batch_size": BATCH},
    )
    moments: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            moments.append(time.perf_counter())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            moments[-1] = time.perf_counter() - moments[-1]

    trainer = SFTTrainer(
        model=_base(work),
        args=args,
        train_dataset=Dataset.from_list(work.rows),
        processing_class=AutoTokenizer.from_pretrained(work.model),
        peft_config=LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM"),
        callbacks=[Clock()],
    )
    counted: list[tuple[int, int]] = []
    train_on = trainer.training_step

    def training_step(model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        ids, mask = inputs["input_ids"], inputs.get("attention_mask")
        counted.append((ids.numel() if mask is None else int(mask.sum()), ids.numel()))
        return train_on(model, inputs, *args, **kwargs)

    vars(trainer)["training_step"] = training_step
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    return _figures(moments, counted, [one["loss"] for one in logs], [one["grad_norm"] for one in logs])


def _base(work: Work, attention: str | None = None) -> Any:
    import torch
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    nf4 = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    options = {"quantization_config": nf4 if work.qlora else None, "attn_implementation": attention}
    return AutoModelForCausalLM.from_pretrained(work.model, dtype=torch.bfloat16, **options)


def by_recipe(work: Work, overrides: Mapping[str, Any]) -> dict[str, Any]:
    folder = work.folder
    data, recipe, output = folder / "chats.jsonl", folder / "peer.yaml", folder / "run"
    data.write_text("".join(json.dumps(row) + "\n" for row in work.rows), encoding="utf-8")
    settings = {
        "name": "peer",
        "method": "sft",
        "model": {"id": work.model, "dtype": "bfloat16"},
        "adapter": {
            "method": "qlora" if work.qlora else "lora",
            "r": RANK,
            "alpha": ALPHA,
            "target_modules": "all-linear",
        },
        "data": {"train": [{"path": str(data)}], "targets": "all"},  # as TRL
        "train": {
            **{"max_steps": work.steps, "max_length": LENGTH, "packing": True, "per_device_train_batch_size": ROWS},
            **{"bf16": True, "gradient_checkpointing": False, "learning_rate": RATE, "logging_steps": 1, "seed": 42},
            **{"save_strategy": "no", "loss_type": "nll"},
        },
        "output_dir": str(output),
    }
    recipe.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
    command = [str(Path(sys.executable).with_name("hf-efficient")), "train", str(recipe)]
    command += [f"{key}={value}" for key, value in overrides.items()]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    steps_found = [json.loads(line) for line in (output / "efficiency/steps.jsonl").read_text().splitlines()]
    steps_found = [one for one in steps_found if one.get("step")]
    account = json.loads((output / "efficiency/run.json").read_text())
    figures = _figures(
        [one["wall_seconds"] for one in steps_found],
        [(one["tokens"]["non_padding"], one["tokens"]["processed"]) for one in steps_found],
        [one["loss"] for one in steps_found],
        [one["grad_norm"] for one in steps_found],
    )
    works = [one["work"]["model_flops"] / one["wall_seconds"] for one in steps_found[WARM_UP:]]
    peak = account["memory"]["peak_rss_bytes"]
    return figures | {"peak_host_bytes": peak, "model_flops_per_second": median(works)}


def by_loop(work: Work) -> dict[str, Any]:
    """Packed greedily in the order of the rows; no Trainer, no accelerate, no records."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoTokenizer

    from hf_efficient.launch.machine import keep_freed_memory
    from hf_efficient.model.documents import known_attention
    from hf_efficient.model.fused_lora import fuse_lora
    from hf_efficient.model.recipe_trainer import fuse_head
    from hf_efficient.model.scored_head import scored_head, target_positions

    keep_freed_memory()
    attention = known_attention("documents")
    base = _base(work, attention)
    torch.manual_seed(42)
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM")
    trained: Any = get_peft_model(base, config)
    trained.train()
    fuse_lora(trained)
    fuse_head(trained)
    weights = [one for one in trained.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=RATE, weight_decay=0.0, fused=True)
    batches = _packed(work.rows, AutoTokenizer.from_pretrained(work.model))
    seconds, counted, losses, norms = [], [], [], []
    for _ in range(work.steps):
        started = time.perf_counter()
        ids, positions, labels = (torch.tensor([one]) for one in next(batches))
        with torch.autocast("cpu", torch.bfloat16), scored_head(target_positions(labels)):
            loss = trained(input_ids=ids, position_ids=positions, labels=labels, fused_lm_head=True).loss
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(weights, 1.0, foreach=True)))
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - started)
        counted.append((ids.numel(), ids.numel()))
        losses.append(float(loss))
    return _figures(seconds, counted, losses, norms)


def _packed(rows: list[dict[str, Any]], tokenizer: Any) -> Iterator[tuple[list[int], list[int], list[int]]]:
    """Token ids, positions and labels of about ``ROWS`` x ``LENGTH`` tokens, whole chats."""
    ids: list[int] = []
    positions: list[int] = []
    labels: list[int] = []
    while True:
        for row in rows:
            tokens = tokenizer.apply_chat_template(row["messages"], return_dict=True)["input_ids"][:LENGTH]
            if len(ids) + len(tokens) > ROWS * LENGTH:
                yield ids, positions, labels
                ids, positions, labels = [], [], []
            ids += tokens
            positions += range(len(tokens))
            labels += [-100, *tokens[1:]]


def _figures(
    seconds: list[float], counted: list[tuple[int, int]], losses: list[float], norms: list[float]
) -> dict[str, Any]:
    kept = [tokens / one for one, (tokens, _) in zip(seconds, counted, strict=True)][WARM_UP:]
    positions = sum(all_of_them for _, all_of_them in counted)
    return {
        "tokens_per_second": median(kept),
        "step_p50_seconds": median(seconds[WARM_UP:]),
        "step_p95_seconds": sorted(seconds[WARM_UP:])[int(0.95 * (len(seconds) - WARM_UP))],
        "padding_share": 1 - sum(tokens for tokens, _ in counted) / positions,
        "peak_host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "losses": losses,
        "gradient_norms": norms,
    }


def learns(figures: dict[str, Any]) -> bool:
    """Gradients that are not zero, and a mean loss of the last third below that of the first."""
    losses, third = figures["losses"], max(1, len(figures["losses"]) // 3)
    return min(figures["gradient_norms"]) > 0 and sum(losses[-third:]) < sum(losses[:third])


_RUN: dict[str, Callable[[Work], dict[str, Any]]] = {
    "trl": lambda work: by_trl(work, packed=False),
    "trl_packed": lambda work: by_trl(work, packed=True),
    "recipe_plain": lambda work: by_recipe(work, {}),
    "recipe": lambda work: by_recipe(work, FAST),
    "loop": by_loop,
}


def _environment() -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(os.cpu_count()), **os.environ, "TOKENIZERS_PARALLELISM": "false"}


def run_arm(name: str, asked: argparse.Namespace) -> dict[str, Any]:
    """The arm's figures, from a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        if name.startswith("recipe"):
            return _RUN[name](work_of(asked, Path(folder)))
        result = Path(folder) / "figures.json"
        command = [sys.executable, __file__, "--worker", name, "--data", str(asked.data), "--model", asked.model]
        command += ["--steps", str(asked.steps), "--json", str(result), *(["--qlora"] if asked.qlora else [])]
        done = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{name}: {done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(result.read_text())
        return found


def work_of(asked: argparse.Namespace, folder: Path) -> Work:
    return Work(chats(asked.data, 100 * asked.steps), asked.model, asked.steps, folder, asked.qlora)


def compare(
    benchmark: str, arms: Mapping[str, str], run: Callable[[str], dict[str, Any]], asked: argparse.Namespace
) -> None:
    """Run the arms in alternating orders; print the table, and write the figures to ``--json``."""
    started, load = datetime.datetime.now(datetime.timezone.utc), load_average()
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in arms}
    for order in alternating_orders(list(arms), asked.rounds):
        for name in order:
            found = run(name)
            runs[name].append(found)
            print(f"{name}: {found['tokens_per_second']:.0f} tokens/s", flush=True)
    told = _summary(runs, arms)
    print(_table(told))
    if asked.json:
        figures = {"load_average_at_start": load, "steps": asked.steps, "rounds": asked.rounds, "arms": told}
        write_result(asked.json, benchmark, started, {**figures, "runs": runs})


def _summary(runs: dict[str, list[dict[str, Any]]], arms: Mapping[str, str]) -> dict[str, Any]:
    base = next(iter(runs))
    told = {}
    for name, found in runs.items():
        ratio = [
            one["tokens_per_second"] / other["tokens_per_second"] for one, other in zip(found, runs[base], strict=True)
        ]
        spread = median_spread(ratio)
        told[name] = {
            "what": arms[name],
            "tokens_per_second": median(one["tokens_per_second"] for one in found),
            "peak_host_bytes": median(one["peak_host_bytes"] for one in found),
            "padding_share": found[-1]["padding_share"],
            f"ratio_to_{base}": {"median": spread.median, "low": spread.low, "high": spread.high},
            "learns": all(learns(one) for one in found),
        }
    return told


def _table(told: dict[str, Any]) -> str:
    lines = ["| arm | tokens/s | peak host GiB | padding | x | learns |", "|---|---|---|---|---|---|"]
    for name, one in told.items():
        ratio = next(value for key, value in one.items() if key.startswith("ratio_to_"))
        lines.append(
            f"| {name}: {one['what']} | {one['tokens_per_second']:.0f} | {one['peak_host_bytes'] / 2**30:.2f} | "
            f"{one['padding_share']:.0%} | {ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}] | "
            f"{'yes' if one['learns'] else 'NO: refused'} |"
        )
    return "\n".join(lines)


def parser_of(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", required=True, help="folder of a model and its tokenizer")
    parser.add_argument("--qlora", action="store_true", help="the base in 4-bit NF4")
    parser.add_argument("--only", help="names of arms, with commas; the first is what the others are compared with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--json", type=Path)
    return parser


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        found = _RUN[asked.worker](work_of(asked, asked.json.parent))
        asked.json.write_text(json.dumps(found), encoding="utf-8")
        return 0
    names = asked.only.split(",") if asked.only else list(ARMS)
    compare("peers", {name: ARMS[name] for name in names}, lambda name: run_arm(name, asked), asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
