"""Contradictions between the sections of a recipe, one case after the other."""

import inspect

import pytest

from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.rules import RULES, training, values
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.schema_check import _key_paths
from hf_efficient.recipe.train_fields import train_fields

HEAD = "name: t\nmodel: {id: m}\ndata: {train: [{path: a}]}\noutput_dir: o\n"
SHORT = {
    "EVAL": "data.eval_fraction=0.1",
    "STEPS": "train.eval_strategy=steps",
    "BEST": "train.load_best_model_at_end=true",
    "CHUNKED": "train.loss_type=chunked_nll",
    "GRPO": "objective=grpo",
    "MATCH": "rewards=number_match",
    "CONFIRMS": "efficiency.confirms={rule: a, predicted_saving: 0.4, seconds_per_token: 0.01, setup: {model: m}}",
}

# Flags; below them, indented, how each problem begins.
REFUSED = """\
adapter.method=full | adapter.quantization={bits: 4}
    adapter.quantization: is 4-bit, but `adapter.method: full` trains all weights; 4-bit weights cannot train.
adapter.method=lora | adapter.quantization={bits: 8}
    adapter.quantization: is 8-bit, but `adapter.method: lora` trains on a base that is not quantized. Write
adapter.method=full | adapter.dora=true | adapter.rslora=true | adapter.bias=all | adapter.merge=true | adapter.modules_to_save=[lm_head]
    adapter.dora: is set, but `adapter.method: full` trains all weights and has no adapter. Remove it, or write
    adapter.rslora: is set, but `adapter.method: full` trains all weights and has no adapter. Remove it, or write
    adapter.modules_to_save: is set, but `adapter.method: full` trains all weights and has no adapter. Remove it,
    adapter.bias: is set, but `adapter.method: full` trains all weights and has no adapter. Remove it, or write
    adapter.merge: is set, but `adapter.method: full` trains all weights and has no adapter. Remove it, or write
train.lr_scheduler_type=cosine | train.lr_scheduler_kwargs={num_cycle: 1}
    train.lr_scheduler_kwargs.num_cycle: is no parameter of `train.lr_scheduler_type: cosine`. Did you mean num_cycles?
train.lr_scheduler_kwargs={power: 2}
    train.lr_scheduler_kwargs.power: is no parameter of `train.lr_scheduler_type: linear`. Remove it.
train.lr_scheduler_type=cosine_with_min_lr
    train.lr_scheduler_kwargs: must hold min_lr or min_lr_rate, one of them, for `train.lr_scheduler_type: cosine_with
train.lr_scheduler_type=warmup_stable_decay
    train.lr_scheduler_kwargs: must hold num_decay_steps for `train.lr_scheduler_type: warmup_stable_decay`. Write, for
train.gradient_checkpointing=true | train.activation_checkpointing=false
    train.activation_checkpointing: is false, and `train.gradient_checkpointing`, the same setting, is true. Keep
train.optim_args=nope
    train.optim_args: is 'nope', which names no value. Write name=value,name=value.
output_dir=/
    output_dir: is /, the root folder. Write a folder of its own, for instance outputs/my-run.
output_dir=~/
    output_dir: is ~/, the home folder. Write a folder of its own
train.max_steps=0
    train.max_steps: is the number 0, which trains nothing. Write a number of steps, or -1 for as many as
train.max_steps=100000000000000000000000000
    train.max_steps: is the number 100000000000000000000000000, but must be at most 2147483647
train.adam_beta1=2.0
    train.adam_beta1: is the number 2.0, but must be less than 1.
train.adam_epsilon=-1.0
    train.adam_epsilon: is the number -1.0, but must be at least 0.
train.save_steps=0
    train.save_steps: is the number 0, but must be greater than 0 or auto.
train.max_length=3000000000
    train.max_length: is the number 3000000000, but must be at most 2147483647
adapter.r=1000000000000
    adapter.r: is the number 1000000000000, but must be at most 65536.
adapter.target_modules=[]
    adapter.target_modules: names no module. Write all-linear, or a list of module names.
distributed.processes=1000000000
    distributed.processes: is the number 1000000000, but must be at most 1024
name=" "
    name: holds spaces alone, but must be text.
train.bf16=true | train.fp16=true
    train.fp16: is true, and so is `train.bf16`. Keep one: bf16 where the device has it, else fp16.
train.dataloader_prefetch_factor=2 | train.dataloader_persistent_workers=true
    train.dataloader_prefetch_factor: is set, but `train.dataloader_num_workers` is 0. Write at least 1 worker, or
    train.dataloader_persistent_workers: is set, but `train.dataloader_num_workers` is 0. Write at least 1 worker,
faults.on_non_finite=rollback | distributed.strategy=fsdp2
    faults.on_non_finite: is rollback, which `distributed.strategy: fsdp2` cannot do. Write stop, or another
faults.on_oom=shrink | distributed.processes=2 | objective=dpo
    faults.on_oom: is shrink, which works on one process. Write stop, or `distributed.processes: 1`.
    faults.on_oom: is shrink, which splits steps of `objective: sft` alone, not of `dpo`. Write stop.
train.packing=true | model.attn_implementation=paged_attention
    model.attn_implementation: is paged_attention, which is not known to keep packed examples apart. Write one of
adapter.fused=true | distributed={strategy: zero3, processes: 2}
    adapter.fused: is true, but `distributed.strategy: zero3` shards the weights that fused layers read. Write false,
train.packing=true | train.max_length=null
    train.max_length: is null, but packing fills rows of this length. Write a length in tokens, for instance 2048.
train.padding_free=true | train.max_length=512
    train.padding_free: is true without packing, so `train.max_length: 512` would not be enforced. Write
data.eval=[{path: e}] | EVAL
    data.eval_fraction: is set, and so is `data.eval`. Keep one of the two; null takes an inherited fraction back.
STEPS
    train.eval_strategy: is steps, but there is no evaluation data. Add `data.eval`, or `data.eval_fraction: 0.05`.
evaluate.metrics=[perplexity]
    evaluate.metrics: is set, but there is no evaluation data. Add `data.eval`, or `data.eval_fraction: 0.05`.
BEST
    train.load_best_model_at_end: is set, but there is no evaluation data. Add `data.eval`, or
BEST | EVAL
    train.load_best_model_at_end: is set, but `train.eval_strategy` is no. Write `train.eval_strategy: steps` or
BEST | EVAL | STEPS | train.save_steps=auto
    train.save_steps: is auto, so the best model may not be saved. Write a multiple of `train.eval_steps`, or
train.save_steps=often
    train.save_steps: is the text 'often', but must be a number or auto.
checkpoints.background=true | distributed.strategy=zero2 | distributed.processes=2
    checkpoints.background: is true, which does not work with `distributed.strategy: zero2`. Write false.
checkpoints.background=true | train.push_to_hub=true
    checkpoints.background: is true, which does not work with `train.push_to_hub`. Write false.
evaluate.early_stopping={}
    evaluate.early_stopping: is set, but there is no evaluation data. Add `data.eval`, or `data.eval_fraction:
    evaluate.early_stopping: is set, but no metric is watched. Write `train.load_best_model_at_end: true`, or
evaluate.early_stopping={} | EVAL | train.metric_for_best_model=eval_loss
    evaluate.early_stopping: is set, but `train.eval_strategy` is no. Write `train.eval_strategy: steps` or epoch.
train.metric_for_best_model=eval_perplexity
    train.metric_for_best_model: is eval_perplexity, which no evaluation computes. Add perplexity to
train.metric_for_best_model=bleu | evaluate.metrics=[exact_match] | EVAL
    train.metric_for_best_model: is bleu, which no evaluation computes. Write one of loss, exact_match.
train.report_to=wandb
    train.report_to: is wandb, but the package wandb is not installed. Install it (pip install wandb), or write
train.fsdp=true | train.fsdp_config={version: 2}
    train.fsdp: is set, but `distributed.strategy` says how a recipe's model is spread, and the launch is derived
    train.fsdp_config: is set, but `distributed.strategy` says how a recipe's model is spread, and the launch is
adapter.target_modules='q_proj|(v_proj'
    adapter.target_modules: is neither all-linear nor a valid regular expression: missing ), unterminated
adapter.target_modules='a{99999999999}'
    adapter.target_modules: is neither all-linear nor a valid regular expression: the repetition number is too
objective=dpo | data.train.0.format=messages
    data.train.0.format: is messages, but `objective: dpo` reads preference. Write `format: preference`, or
data.eval=[{path: e}, {path: f, format: preference}]
    data.eval.1.format: is preference, but `objective: sft` reads messages, sharegpt, prompt_completion, alpaca or text.
objective=dpo | train.train_sampling_strategy=group_by_length
    train.train_sampling_strategy: is group_by_length, but the pairs of `objective: dpo` have no one length. Write null
objective=dpo | evaluate.metrics=[perplexity] | EVAL
    evaluate.metrics: is set, but an evaluation of `objective: dpo` reports the loss and TRL's own metrics only. Remove it.
cost.price_usd_per_hour=2 | cost.price_from=aws
    cost.price_from: is set, and so is price_usd_per_hour. Keep one of the two.
cost.price_from=lamda
    cost.price_from: 'lamda' is no provider with known figures. Did you mean lambda?
cost.grid=Frnace
    cost.grid: 'Frnace' is no region with known figures. Did you mean France
EVAL | CHUNKED | train.label_smoothing_factor=0.1
    train.label_smoothing_factor: is set, but `train.loss_type: chunked_nll` never has the whole logits that it
EVAL | CHUNKED | train.use_liger_kernel=true
    train.use_liger_kernel: is true, but Liger's fused loss takes the place of `train.loss_type: chunked_nll`.
EVAL | CHUNKED | adapter.target_modules=[q_proj, lm_head]
    adapter.target_modules: names lm_head, whose adapter `train.loss_type: chunked_nll` would leave out. Write it
EVAL | adapter.method=full | model.dtype=float16
    model.dtype: is float16, whose range is too small for weights that are trained. Write bfloat16, or float32 with
EVAL | objective=dpo | data.overlong=drop
    data.overlong: is drop, but TRL's DPOTrainer decides what happens beyond `train.max_length`. Write truncate, or
objective=kto | train.per_device_train_batch_size=1
    train.per_device_train_batch_size: is 1, but KTO estimates its KL term from the other answers of a micro-batch.
objective=kto | train.per_device_train_batch_size=2 | train.train_sampling_strategy=random
    train.train_sampling_strategy: is random, but KTO pairs the answers of each micro-batch before the training. Remove
objective=reward | adapter.target_modules=[q_proj, lm_head]
    adapter.target_modules: names lm_head, but a reward model has a head that scores in its place. Remove it.
objective=dpo | adapter.target_modules=[q_proj, lm_head]
    adapter.target_modules: names lm_head, whose adapter `objective: dpo` would leave out. Remove it.
EVAL | objective=dpo | evaluate.generate.show=2
    evaluate.generate.show: is set, but an evaluation of `objective: dpo` generates no answers. Write 0.
budget={}
    budget: has no limit. Write usd, hours or kwh, or remove it.
budget={usd: 2} | efficiency.record_steps=false
    budget: is set, but `efficiency.record_steps: false` records nothing that could be counted. Remove
CONFIRMS | efficiency.record_steps=false
    efficiency.confirms: is set, but `efficiency.record_steps: false` keeps no record to compare.
efficiency.confirms={rule: a, predicted_savings: 0.4}
    efficiency.confirms.predicted_savings: is no key of a recipe. Did you mean `predicted_saving`?
profile.trace={} | efficiency.record_steps=false
    profile: is set, but `efficiency.record_steps: false` keeps no record that shows what it costs.
profile.trace={wait: 4, warmup: 1} | train.max_steps=5
    profile.trace: waits for step 6, but `train.max_steps` is 5. Write a smaller wait or warmup, or more
profile.memory={at_steps: [2, 9]} | train.max_steps=8
    profile.memory.at_steps.1: waits for step 9, but `train.max_steps` is 8. Write a smaller one, or
profile.python={after_step: 8} | train.max_steps=8
    profile.python.after_step: waits for step 9, but `train.max_steps` is 8. Write a smaller one, or
profile.trace={} | profile.python={}
    profile.trace.stacks: is set, but `profile.python` watches Python's calls already, and
profile.python={} | profile.host_memory=['json:dumps']
    profile.host_memory: is set, but `profile.python` watches Python's calls already, and
profile.lines=['json:dumps'] | train.max_steps=4
    profile.lines: waits for step 5, but `train.max_steps` is 4. Remove it, or more steps.
profile.lines=[json.dumps]
    profile.lines.0: is 'json.dumps', which names no function. Write package.module:function.
distributed.processes=4 | distributed.strategy=none
    distributed.strategy: is none, which is one process, but `distributed.processes` is 4. Write ddp, or one of
distributed.processes=4 | distributed.offload.optimizer=true
    distributed.offload.optimizer: is set, but `distributed.strategy: auto` cannot offload it. Write `strategy:
distributed.strategy=fsdp2 | distributed.offload.optimizer=true
    distributed.offload.optimizer: is set, but `distributed.strategy: fsdp2` offloads the optimizer's state with
distributed.strategy=zero2 | distributed.offload.optimizer=true | train.optim=adafactor
    distributed.offload.optimizer: is set, but DeepSpeed steps on the host with its own AdamW, and `train.optim` is
    train.optim: is adafactor, whose state `distributed.strategy: zero2` cannot shard over processes. Write
distributed.strategy=zero2 | distributed.offload.parameters=true
    distributed.offload.parameters: is set, but under `distributed.strategy: zero2` each process needs the whole
distributed.strategy=fsdp2 | train.optim=paged_adamw_8bit
    train.optim: is paged_adamw_8bit, whose state `distributed.strategy: fsdp2` cannot shard over processes.
distributed.strategy=zero3 | adapter.method=qlora
    distributed.strategy: is zero3, which cannot shard the 4-bit weights of `adapter.method: qlora`. Write
distributed.strategy=fsdp2 | adapter.method=qlora | adapter.quantization={bits: 8}
    distributed.strategy: is fsdp2, which cannot shard 8-bit weights. Write `adapter.quantization.bits: 4`, or
distributed.strategy=none | distributed.processes=1 | distributed.nodes=2
    distributed.strategy: is none, which is one process, but `distributed.nodes` is 2. Write ddp, or one of zero1,
distributed.strategy=zero3 | distributed.offload.nvme_path=/x
    distributed.offload.nvme_path: is set, but nothing is offloaded. Write `offload.optimizer: true` or
distributed.strategy=fsdp2 | distributed.offload.parameters=true | distributed.offload.nvme_path=/x
    distributed.offload.nvme_path: is set, but `distributed.strategy: fsdp2` offloads to the host's memory alone.
data.targets=last | train.assistant_only_loss=true
    train.assistant_only_loss: is set, and so is `data.targets`, which stands in its place. Remove one.
data.targets=all | train.completion_only_loss=false
    train.completion_only_loss: is set, and so is `data.targets`, which stands in its place. Remove one.
objective=dpo | data.targets=last
    data.targets: is set, but `objective: dpo` trains on whole answers. Remove it.
rewards=number_match
    rewards: is set, but `objective: sft` rewards no completions. Remove it, or write `objective: grpo`.
objective=grpo
    rewards: is missing, and GRPO learns from nothing else. Write one or more: `rewards: number_match`, or
GRPO | rewards=[{weight: 2}, {name: length}, {name: number_match, pattern: a}]
    rewards.0: names no reward. Write `name`, for instance number_match, or `function: module:function`.
    rewards.1: is length, which needs `tokens`. Write {name: length, tokens: 200}.
    rewards.2.pattern: is set, but belongs to the reward format. Remove it.
GRPO | rewards={name: format, pattern: '('}
    rewards.0.pattern: is no regular expression: missing ), unterminated subpattern at position 0. Write a valid one.
GRPO | rewards=own:reward
    rewards.0.function: is own:reward, and a recipe runs Python code only where it says so. Write {function: own:reward,
GRPO | rewards={function: own reward, run_code: true}
    rewards.0.function: is 'own reward', which names no function. Write module:function.
GRPO | MATCH | train.num_generations=3
    train.num_generations: is 3, but 8 completions are generated together, which is no multiple of it. Write a divisor
GRPO | MATCH | train.num_generations=1
    train.num_generations: is 1, but completions of one prompt are compared with each other. Write 2 or more.
GRPO | MATCH | EVAL | train.per_device_eval_batch_size=6
    train.per_device_eval_batch_size: gives 6 completions, no multiple of the 8 of a prompt. Write a multiple of 8, or
GRPO | MATCH | adapter.method=full | train.beta=0.1
    train.beta: is set, for which TRL would load a second model by its name, past what `model` says. Write 0.0, or
GRPO | MATCH | efficiency.preflight=true | data.overlong=drop | train.use_vllm=true
    efficiency.preflight: is true, but a preflight check knows no longest batch of completions that are not there yet.
    data.overlong: is drop, but prompts are not cut. Remove it, and leave long prompts out of the file.
    train.use_vllm: needs the package vllm, which is not installed. Install it, or write false.
GRPO | MATCH | train.reward_weights=[1.0]
    train.reward_weights: is set elsewhere in a recipe. Write `weight` at each of `rewards`.
GRPO | MATCH | evaluate.metrics=[perplexity] | EVAL
    evaluate.metrics: is set, but an evaluation of `objective: grpo` reports the loss and TRL's own metrics only. Remove it.
"""  # noqa: E501
ACCEPTED = """\
adapter.method=full | adapter.r=8 | adapter.target_modules=[q_proj]
adapter.method=lora | adapter.dora=true | adapter.rslora=true | adapter.merge=true
adapter.method=qlora | adapter.quantization={bits: 4} | adapter.merge=true | adapter.dora=true
adapter.method=qlora | adapter.quantization={bits: 8}
train.packing=true
train.packing=true | model.attn_implementation=documents | adapter.fused=true
train.packing=true | model.attn_implementation=flash_attention_2
train.packing=true | model.attn_implementation=kernels-community/vllm-flash-attn3
train.packing=true | model.attn_implementation=other | train.packing_strategy=wrapped
train.padding_free=true | train.max_length=null
train.completion_only_loss=true | train.assistant_only_loss=true
EVAL | STEPS | BEST | train.eval_steps=10 | train.save_steps=20 | evaluate.early_stopping={}
EVAL | STEPS | BEST | train.eval_steps=0.1 | train.save_steps=0.2
EVAL | train.eval_strategy=epoch | BEST | train.save_strategy=best
EVAL | STEPS | train.metric_for_best_model=loss | evaluate.early_stopping={patience: 1}
evaluate.metrics=[token_accuracy] | EVAL | STEPS | BEST | train.metric_for_best_model=eval_token_accuracy | train.save_steps=10
objective=dpo | data.train.0.format=preference
GRPO | MATCH | data.train.0.format=question | EVAL | train.metric_for_best_model=reward | STEPS | BEST | train.save_steps=10
GRPO | MATCH | train.per_device_train_batch_size=1 | train.gradient_accumulation_steps=4 | distributed.processes=2
GRPO | MATCH | train.generation_batch_size=16 | train.num_generations=16
GRPO | rewards=[exact_match, {name: format, pattern: a.*b, weight: -0.5}, {name: format, pattern: b}] | train.beta=0.1
GRPO | rewards={function: own:reward, run_code: true} | adapter.method=full
objective=dpo | EVAL | STEPS | BEST | train.save_steps=10 | train.metric_for_best_model=rewards/accuracies
train.optim=paged_adamw_8bit
train.report_to=[none]
train.fsdp=false | train.fsdp_config={} | train.deepspeed=null | train.dataloader_drop_last=true
adapter.target_modules='model.layers.[0-9]+.(q|v)_proj'
cost.price_usd_per_hour=0 | cost.grid=NO
cost.price_from=gcp | cost.market=spot | cost.grid=120
cost.market=spot | cost.spot.hours_between_preemptions=6
cost.price_from=Lambda | cost.market=on_demand | cost.grid=UK
EVAL | CHUNKED | train.label_smoothing_factor=0
EVAL | CHUNKED | train.use_liger_kernel=true | train.liger_kernel_config={fused_linear_cross_entropy: false}
EVAL | CHUNKED | adapter.target_modules=[q_proj, v_proj] | adapter.modules_to_save=[lm_head]
EVAL | CHUNKED | evaluate.metrics=[perplexity, token_accuracy]
EVAL | adapter.method=lora | model.dtype=float16
EVAL | objective=dpo | data.overlong=truncate
budget={usd: 2, hours: 1.5, kwh: 0.3}
CONFIRMS
distributed.processes=auto
distributed.processes=1 | distributed.strategy=zero2 | distributed.offload.optimizer=true
distributed.processes=4 | distributed.strategy=zero3 | distributed.offload.optimizer=true | distributed.offload.parameters=true
distributed.processes=4 | distributed.strategy=fsdp2 | distributed.offload.parameters=true
distributed.processes=2 | distributed.strategy=zero3 | train.optim=adamw_torch_fused
distributed.processes=2 | distributed.strategy=ddp | train.optim=adafactor
distributed.strategy=fsdp2 | adapter.method=qlora
distributed.strategy=zero2 | adapter.method=qlora
distributed.strategy=zero3 | distributed.offload.parameters=true | distributed.offload.nvme_path=/x
distributed.strategy=fsdp2 | distributed.wrap_classes=[LlamaDecoderLayer]
"""  # noqa: E501


def flags_of(line):
    return [SHORT.get(flag, flag) for flag in line.split(" | ")]


def refused_cases():
    cases = []
    for line in REFUSED.splitlines():
        if line.startswith(" "):
            cases[-1][1].append(line.strip())
        else:
            cases.append((line, []))
    return cases


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """No integration is installed, every instrument is."""
    monkeypatch.setattr(training, "is_installed", lambda _module: False)
    monkeypatch.setattr(values, "is_installed", lambda _module: True)


@pytest.mark.parametrize(("flags", "said"), refused_cases())
def test_a_contradiction_is_told(problems, flags, said):
    found = problems(HEAD, *flags_of(flags))
    assert len(found) == len(said)
    for problem, beginning in zip(found, said, strict=True):
        assert beginning in problem


@pytest.mark.parametrize("flags", ACCEPTED.splitlines())
def test_no_contradiction(problems, flags):
    assert problems(HEAD, *flags_of(flags)) == []


def test_a_contradiction_is_told_at_the_line_of_its_key(problems):
    assert problems(HEAD + "train:\n  bf16: true\n  fp16: true\n") == [
        "r.yaml:7: train.fp16: is true, and so is `train.bf16`. Keep one: bf16 where the device has it, else fp16."
    ]


def test_every_rule_reads_keys_that_are_there():
    keys = {".".join(map(str, path)) for path in _key_paths(Recipe)}
    keys |= {f"train.{name}" for objective in OBJECTIVES for name in train_fields(objective)}
    for rule in RULES:
        assert set(rule.reads) <= keys, rule.check.__name__


def test_what_is_installed_is_used(problems, monkeypatch):
    asked = []
    monkeypatch.setattr(training, "is_installed", lambda module: asked.append(module) or module == "tensorboardX")
    flag = "train.report_to=[tensorboard, mlflow]"
    (found,) = problems(HEAD, flag, "train.optim=adamw_bnb_8bit")
    assert found.startswith(f"command line: {flag}: train.report_to.1: is mlflow, but the package mlflow is not")
    assert asked == ["tensorboard", "tensorboardX", "mlflow"]


@pytest.mark.parametrize(
    ("flag", "package"), [("lines=['json:dumps']", "line_profiler"), ("host_memory=['json:dumps']", "memray")]
)
def test_a_missing_package_is_named_with_its_extra(problems, monkeypatch, flag, package):
    monkeypatch.setattr(values, "is_installed", lambda module: module != package)
    (found,) = problems(HEAD, f"profile.{flag}")
    assert f"needs the package {package}, which is not installed. Install the extra" in found


def test_a_file_alone_lets_no_repository_run_code(problems):
    held = HEAD.replace("{id: m}", "{id: m, trust_remote_code: true}")
    assert problems(held, "model.trust_remote_code=true") == []
    (found,) = problems(held)
    assert found.startswith("r.yaml:2: model.trust_remote_code: is true, which lets the model's repository run its Py")
    assert "add model.trust_remote_code=true to the command line; a file cannot allow it." in found


def test_the_table_of_schedules_fits_the_installed_transformers():
    from transformers.optimization import TYPE_TO_SCHEDULER_FUNCTION

    steps = {"optimizer", "num_warmup_steps", "num_training_steps", "last_epoch"}
    for name, function in TYPE_TO_SCHEDULER_FUNCTION.items():
        found = set(inspect.signature(function).parameters) - steps
        known = values.SCHEDULES[name.value]
        assert found == ({"kwargs"} if known is None else set(known)), name


def test_the_table_of_packages_fits_the_installed_transformers():
    fields = train_fields("sft")
    without_package = {"none", "all", "kubeflow"}
    assert set(training._INTEGRATIONS) == set(fields["report_to"].choices) - without_package
