from __future__ import annotations

import pytest

from hf_efficient.recipe.load import load_recipe
from hf_efficient.recipe.rules import RULES
from hf_efficient.recipe.rules import training as packages
from hf_efficient.recipe.train_fields import train_fields

HEAD = "name: t\nmodel: {id: m}\ndata: {train: [{path: a}]}\noutput_dir: o\n"
EVAL = "data.eval_fraction=0.1"
ADD_DATA = "Add `data.eval`, or `data.eval_fraction: 0.05`."
ADD_STRATEGY = "Write `train.eval_strategy: steps` or epoch."
STEPS = "train.eval_strategy=steps"
BEST = "train.load_best_model_at_end=true"
SAVES = "train.save_steps=10"
PROVIDERS = (
    "runpod-community, runpod-secure, lambda, hyperstack, nebius, aws, azure, gcp, verda, hf-jobs, jarvislabs, crusoe, "
    "akash or mithril"
)
CHECKPOINTING_OFF = "is set, but activation checkpointing is off"


@pytest.fixture
def nothing_installed(monkeypatch):
    monkeypatch.setattr(packages, "is_installed", lambda _module: False)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            ["adapter.method=full", "adapter.quantization={bits: 4}"],
            [
                "adapter.quantization: is 4-bit, but `adapter.method: full` trains all weights; 4-bit"
                " weights cannot"
                " train. Write `adapter.method: qlora`, or remove the quantization."
            ],
        ),
        (
            ["adapter.method=lora", "adapter.quantization={bits: 8}"],
            [
                "adapter.quantization: is 8-bit, but `adapter.method: lora` trains on a base that is not"
                " quantized."
                " Write `adapter.method: qlora`, or remove the quantization."
            ],
        ),
        (
            [
                "adapter.method=full",
                "adapter.dora=true",
                "adapter.rslora=true",
                "adapter.bias=all",
                "adapter.merge=true",
                "adapter.modules_to_save=[lm_head]",
            ],
            [
                f"adapter.{name}: is set, but `adapter.method: full` trains all weights and has no adapter."
                " Remove it, or write `adapter.method: lora`."
                for name in ("dora", "rslora", "bias", "merge", "modules_to_save")
            ],
        ),
        (
            [
                "adapter.method=qlora",
                "adapter.quantization={bits: 8, type: fp4, double_quant: true}",
                "adapter.quantization.compute_dtype=float16",
            ],
            [
                f"adapter.quantization.{name}: is a setting of 4-bit quantization, but"
                " `adapter.quantization.bits` is 8."
                " Remove it, or write `bits: 4`."
                for name in ("type", "double_quant", "compute_dtype")
            ],
        ),
        (
            ["train.bf16=true", "train.fp16=true"],
            ["train.fp16: is true, and so is `train.bf16`. Keep one: bf16 where the device has it, else fp16."],
        ),
        (
            ["train.bf16_full_eval=true", "train.fp16_full_eval=true"],
            [
                "train.fp16_full_eval: is true, and so is `train.bf16_full_eval`. Keep one: bf16 where the"
                " device has"
                " it, else fp16."
            ],
        ),
        (
            [
                "train.gradient_checkpointing=false",
                "train.gradient_checkpointing_kwargs={use_reentrant: false}",
            ],
            [
                f"train.gradient_checkpointing_kwargs: {CHECKPOINTING_OFF} (`train.gradient_checkpointing:"
                " false`)."
                " Write `train.gradient_checkpointing: true`, or remove it."
            ],
        ),
        (
            [
                "train.activation_checkpointing=false",
                "train.activation_checkpointing_kwargs={every_n_layers: 2}",
            ],
            [
                f"train.activation_checkpointing_kwargs: {CHECKPOINTING_OFF}"
                " (`train.activation_checkpointing: false`)."
                " Write `train.activation_checkpointing: true`, or remove it."
            ],
        ),
        (
            ["train.dataloader_prefetch_factor=2", "train.dataloader_persistent_workers=true"],
            [
                f"train.{name}: is set, but `train.dataloader_num_workers` is 0. Write at least 1 worker, or remove it."
                for name in ("dataloader_prefetch_factor", "dataloader_persistent_workers")
            ],
        ),
        (
            ["train.packing=true", "model.attn_implementation=paged_attention"],
            [
                "model.attn_implementation: is paged_attention, which is not known to keep packed examples"
                " apart. Write"
                " one of sdpa, eager, flex_attention, flash_attention_2, flash_attention_3,"
                " flash_attention_4, or"
                " `train.packing: false`."
            ],
        ),
        (
            ["train.packing=true", "train.max_length=null"],
            [
                "train.max_length: is null, but packing fills rows of this length. Write a length in"
                " tokens, for"
                " instance 2048."
            ],
        ),
        (
            ["train.padding_free=true", "train.max_length=512"],
            [
                "train.padding_free: is true without packing, so `train.max_length: 512` would not be"
                " enforced. Write"
                " `train.packing: true`, or `train.max_length: null`."
            ],
        ),
        (
            ["data.eval=[{path: e}]", EVAL],
            [
                "data.eval_fraction: is set, and so is `data.eval`. Keep one of the two; null takes an"
                " inherited"
                " fraction back."
            ],
        ),
        ([STEPS], [f"train.eval_strategy: is steps, but there is no evaluation data. {ADD_DATA}"]),
        (
            ["train.eval_on_start=true"],
            [f"train.eval_on_start: is true, but there is no evaluation data. {ADD_DATA}"],
        ),
        (
            ["evaluate.metrics=[perplexity]"],
            [f"evaluate.metrics: is set, but there is no evaluation data. {ADD_DATA}"],
        ),
        (
            ["train.lr_scheduler_type=reduce_lr_on_plateau"],
            [
                "train.lr_scheduler_type: is reduce_lr_on_plateau, which needs evaluations during"
                " training, but"
                f" `train.eval_strategy` is no. {ADD_STRATEGY}"
            ],
        ),
        ([BEST], [f"train.load_best_model_at_end: is true, but there is no evaluation data. {ADD_DATA}"]),
        (
            [BEST, EVAL],
            [f"train.load_best_model_at_end: is true, but `train.eval_strategy` is no. {ADD_STRATEGY}"],
        ),
        (
            [BEST, EVAL, "train.eval_strategy=epoch"],
            [
                "train.save_strategy: is steps and `train.eval_strategy` is epoch, so the best model may"
                " not be saved."
                " Write `train.save_strategy: epoch`, or best."
            ],
        ),
        (
            [BEST, EVAL, STEPS, "train.eval_steps=20", "train.save_steps=50"],
            [
                "train.save_steps: is 50, no multiple of the 20 steps between evaluations, so the best"
                " model may not be"
                " saved. Write `train.save_steps: 20`, or `train.save_strategy: best`."
            ],
        ),
        (
            ["evaluate.early_stopping={}"],
            [
                f"evaluate.early_stopping: is set, but there is no evaluation data. {ADD_DATA}",
                "evaluate.early_stopping: is set, but no metric is watched. Write"
                " `train.load_best_model_at_end: true`,"
                " or `train.metric_for_best_model: loss`.",
            ],
        ),
        (
            ["evaluate.early_stopping={}", EVAL, "train.metric_for_best_model=eval_loss"],
            [f"evaluate.early_stopping: is set, but `train.eval_strategy` is no. {ADD_STRATEGY}"],
        ),
        (
            ["train.metric_for_best_model=eval_perplexity"],
            [
                "train.metric_for_best_model: is eval_perplexity, which no evaluation computes. Add"
                " perplexity to"
                " `evaluate.metrics`."
            ],
        ),
        (
            ["train.metric_for_best_model=bleu", "evaluate.metrics=[exact_match]", EVAL],
            ["train.metric_for_best_model: is bleu, which no evaluation computes. Write one of loss, exact_match."],
        ),
        (
            ["train.metric_for_best_model=bleu"],
            ["train.metric_for_best_model: is bleu, which no evaluation computes. Write loss."],
        ),
        (
            ["train.report_to=wandb"],
            [
                "train.report_to: is wandb, but the package wandb is not installed. Install it (pip install wandb), or"
                " write `train.report_to: none`."
            ],
        ),
        (
            ["train.report_to=[trackio, all]"],
            [
                "train.report_to.0: is trackio, but the package trackio is not installed. Install it (pip install"
                " trackio), or write `train.report_to: none`.",
                "train.report_to.1: is all, which stands alone. Name integrations, or write it alone.",
            ],
        ),
        (
            ["train.report_to=null"],
            ["train.report_to: is null, which transformers takes for a name. Write none."],
        ),
        (
            ["train.optim=galore_adamw_8bit"],
            [
                "train.optim: is galore_adamw_8bit, but the package galore_torch is not installed. Install it"
                " (pip install galore-torch), or write another optimizer."
            ],
        ),
        (
            ["train.optim=adamw_torch_4bit"],
            [
                "train.optim: is adamw_torch_4bit, but the package torchao is not installed. Install it"
                " (pip install torchao), or write another optimizer."
            ],
        ),
        (
            ["train.fsdp=true", "train.fsdp_config={version: 2}"],
            [
                f"train.{name}: is set, but `distributed.strategy` says how a recipe's model is spread, and the launch"
                " is derived from it. Remove it, and write `distributed.strategy: fsdp2`."
                for name in ("fsdp", "fsdp_config")
            ],
        ),
        (
            ["train.deepspeed=ds.json"],
            [
                "train.deepspeed: is set, but `distributed.strategy` says how a recipe's model is spread, and the"
                " launch is derived from it. Remove it, and write `distributed.strategy: zero2` (zero1, zero3), with"
                " `distributed.offload`."
            ],
        ),
        (
            ["adapter.target_modules='q_proj|(v_proj'"],
            [
                "adapter.target_modules: is neither all-linear nor a valid regular expression: missing ), unterminated"
                " subpattern at position 7. Write all-linear, a list of module names, or a valid expression."
            ],
        ),
        (
            ["adapter.target_modules='a{99999999999}'"],
            [
                "adapter.target_modules: is neither all-linear nor a valid regular expression: the repetition number is"
                " too large. Write all-linear, a list of module names, or a valid expression."
            ],
        ),
        (
            ["method=dpo", "data.train.0.format=messages"],
            [
                "data.train.0.format: is messages, but `method: dpo` trains on preference pairs. Write"
                " `format: preference`, or `method: sft`."
            ],
        ),
        (
            ["data.eval=[{path: e}, {path: f, format: preference}]"],
            [
                "data.eval.1.format: is preference, but `method: sft` does not train on pairs. Write"
                " `method: dpo`, or"
                " the format of single answers."
            ],
        ),
        (
            ["method=dpo", "evaluate.metrics=[perplexity]", EVAL],
            [
                "evaluate.metrics: is set, but an evaluation of `method: dpo` reports the loss and TRL's"
                " rewards only."
                " Remove it."
            ],
        ),
        (
            ["efficiency.price_usd_per_hour=2", "efficiency.price_from=aws"],
            [
                "efficiency.price_from: is set, and so is `efficiency.price_usd_per_hour`. Keep one of the two; null"
                " takes an inherited value back."
            ],
        ),
        (
            ["efficiency.price_from=lamda"],
            ["efficiency.price_from: is lamda, which is no provider with known prices. Did you mean lambda?"],
        ),
        (
            ["efficiency.price_from=zz"],
            [
                f"efficiency.price_from: is zz, which is no provider with known prices. Write {PROVIDERS}; or"
                " `efficiency.price_usd_per_hour` in its place."
            ],
        ),
        (
            ["efficiency.price_from=aws", "efficiency.market=spot"],
            [
                "efficiency.market: is spot, but no such price of aws is known. Write on_demand, or"
                " `efficiency.price_usd_per_hour` in place of `efficiency.price_from`."
            ],
        ),
        (
            ["efficiency.grid=Frnace"],
            ["efficiency.grid: is Frnace, which is no country with a known grid. Did you mean France?"],
        ),
        (
            ["efficiency.grid=xyz"],
            [
                "efficiency.grid: is xyz, which is no country with a known grid. Write a country's English name or its"
                " ISO code, or a number of gCO2e/kWh."
            ],
        ),
    ],
)
def test_contradictions(problems, nothing_installed, flags, expected):
    found = problems(HEAD, *flags)
    # "command line: FLAG: KEY: ..." or, where only a default is to blame, "r.yaml: KEY: ...".
    stripped = []
    for problem in found:
        flag = next((flag for flag in flags if problem.startswith(f"command line: {flag}: ")), None)
        where = f"command line: {flag}: " if flag is not None else problem[: problem.index(": ") + 2]
        stripped.append(problem.removeprefix(where))
    assert sorted(stripped) == sorted(expected)


@pytest.mark.parametrize(
    "flags",
    [
        ["adapter.method=full", "adapter.r=8", "adapter.target_modules=[q_proj]"],
        ["adapter.method=lora", "adapter.dora=true", "adapter.rslora=true", "adapter.merge=true"],
        ["adapter.method=qlora", "adapter.quantization={bits: 4}", "adapter.merge=true", "adapter.dora=true"],
        ["adapter.method=qlora", "adapter.quantization={bits: 8}"],
        ["train.bf16=false", "train.fp16=true"],
        ["train.gradient_checkpointing_kwargs={use_reentrant: false}"],
        [
            "train.gradient_checkpointing=false",
            "train.activation_checkpointing=true",
            "train.gradient_checkpointing_kwargs={use_reentrant: false}",
        ],
        ["train.dataloader_num_workers=2", "train.dataloader_prefetch_factor=2"],
        ["train.packing=true"],
        *(
            ["train.packing=true", f"model.attn_implementation={name}"]
            for name in ("sdpa", "eager", "flex_attention", "flash_attention_2", "flash_attention_3")
        ),
        ["train.packing=true", "model.attn_implementation=flash_attention_4"],
        ["train.packing=true", "model.attn_implementation=kernels-community/vllm-flash-attn3"],
        ["train.packing=true", "model.attn_implementation=other", "train.packing_strategy=wrapped"],
        ["model.attn_implementation=other"],
        ["train.padding_free=true", "train.max_length=null"],
        ["train.padding_free=true", "train.packing=true"],
        ["train.completion_only_loss=true", "train.assistant_only_loss=true"],
        [EVAL, STEPS, BEST, "train.eval_steps=10", "train.save_steps=20", "evaluate.early_stopping={}"],
        [EVAL, STEPS, BEST, "train.eval_steps=0.1", "train.save_steps=0.2"],
        [EVAL, "train.eval_strategy=epoch", BEST, "train.save_strategy=best"],
        [EVAL, STEPS, "train.metric_for_best_model=loss", "evaluate.early_stopping={patience: 1}"],
        [
            "evaluate.metrics=[token_accuracy]",
            EVAL,
            STEPS,
            BEST,
            "train.metric_for_best_model=eval_token_accuracy",
            SAVES,
        ],
        ["data.eval=[{path: e}]", "train.eval_on_start=true"],
        ["method=dpo", "data.train.0.format=preference"],
        ["method=dpo", EVAL, STEPS, BEST, SAVES, "train.metric_for_best_model=rewards/accuracies"],
        ["train.optim=paged_adamw_8bit"],
        ["train.optim=adamw_torch_fused", "train.report_to=none"],
        ["train.report_to=[none]"],
        ["train.report_to=all"],
        ["train.report_to=[]"],
        ["train.fsdp=false", "train.fsdp_config={}", "train.deepspeed=null", "train.dataloader_drop_last=true"],
        ["adapter.target_modules='model.layers.[0-9]+.(q|v)_proj'"],
        ["efficiency.price_usd_per_hour=0", "efficiency.grid=NO"],
        ["efficiency.price_from=gcp", "efficiency.market=spot", "efficiency.grid=120"],
        ["efficiency.market=spot", "efficiency.spot.hours_between_preemptions=6"],
        ["efficiency.market=spot", "efficiency.price_usd_per_hour=0.9"],
        ["efficiency.price_from=Lambda", "efficiency.market=on_demand", "efficiency.grid=UK"],
    ],
)
def test_no_contradiction(problems, nothing_installed, flags):
    assert problems(HEAD, *flags) == []


def test_a_contradiction_is_told_at_the_line_of_its_key(problems):
    assert problems(HEAD + "train:\n  bf16: true\n  fp16: true\n") == [
        "r.yaml:7: train.fp16: is true, and so is `train.bf16`. Keep one: bf16 where the device has it, else fp16."
    ]


def test_every_rule_says_what_it_reads(write):
    known = set(load_recipe(write()).provenance)
    sections = {key.split(".")[0] for key in known}
    for rule in RULES:
        assert rule.reads, rule.__name__
        assert {key.split(".")[0] for key in rule.reads} <= sections, rule.__name__
        assert rule.__doc__, rule.__name__


def test_what_is_installed_is_used(problems, monkeypatch):
    asked = []
    monkeypatch.setattr(packages, "is_installed", lambda module: asked.append(module) or module == "tensorboardX")
    flag = "train.report_to=[tensorboard, mlflow]"
    assert problems(HEAD, flag, "train.optim=adamw_bnb_8bit") == [
        f"command line: {flag}: train.report_to.1: is mlflow, but the package mlflow is not installed. Install it"
        " (pip install mlflow), or write `train.report_to: none`."
    ]
    assert asked == ["tensorboard", "tensorboardX", "mlflow"]


def test_the_tables_of_packages_fit_the_installed_transformers():
    fields = train_fields("sft")
    without_package = {"none", "all", "kubeflow"}
    assert set(packages._INTEGRATIONS) == set(fields["report_to"].choices) - without_package
    optimizers = fields["optim"].choices
    assert [start for start, *_ in packages._OPTIMIZERS if not any(name.startswith(start) for name in optimizers)] == []
