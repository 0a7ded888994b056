"""The end of a training on a terminal."""

from dataclasses import replace
from pathlib import Path

from page_reader import printed
from sample_findings import diagnosed, healthy

from hf_efficient.metrics.answers import Answer
from hf_efficient.records import findings
from hf_efficient.reporting import console as end
from hf_efficient.reporting.diagnosis import diagnosis_renderables, remedy_words

METRICS = {f"metric_{number}": 1.0 + number for number in range(9)}


def answers(said):
    return [Answer(f"{number}?\n" + "q" * 300, "", "e" * 300, said * 99, match=False) for number in range(8)]


def whole(run):
    return printed(
        *end.answer_rows(answers("old "), answers("new ")),
        *end.loss_table(METRICS, METRICS, (4.0, 2.0)),
        *end.headline(run.account),
        *end.short_findings(run.diagnosis),
        end.where(Path("out"), Path("out/merged"), Path("out/efficiency/report.html")),
    )


def test_rewards_stand_in_place_of_losses_around_0():
    before = {"loss": 0.01, "reward": 0.25, "completions/mean_length": 10.0, "entropy": 2.0}
    (made, _) = end.loss_table(before, {**before, "reward": 0.5}, (0.02, 0.03))
    assert [list(map(str, column.cells)) for column in made.columns[:3]] == [
        ["reward", "completions/mean_length"],
        ["0.25", "10"],
        ["0.5", "10"],
    ]


def test_it_takes_at_most_40_lines_of_80_columns(full_run):
    lines = whole(diagnosed(full_run))
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("before ") and line.endswith("…") for line in lines) == 2
    assert ["training", "loss", "4", "2", "-50.0%"] in [line.split() for line in lines]
    assert "The run took 3 min 29 s" in lines
    assert [line.split()[0] for line in lines[-3:]] == ["model", "page", "next"]
    findings = [line for line in lines if line[:3] in ("1. ", "2. ", "3. ", "4. ")]
    assert len(findings) == 3
    assert findings[0].startswith("1. The loss")
    assert any(line.startswith("and ") and " more: " in line for line in lines)
    assert any(line.startswith("planned  peak allocated") for line in lines)


def test_a_run_with_nothing_to_fix_and_one_that_recorded_little(full_run, bare_run):
    assert "Nothing to fix." in whole(healthy(full_run))
    lines = printed(*end.headline(bare_run.account), end.where(Path("out"), None, None))
    assert not any(line.startswith("cost") for line in lines)
    assert lines[-1] == "model  out"


def test_a_script_gets_arguments_in_place_of_keys(full_run):
    diagnosis = diagnosed(full_run).diagnosis
    remedy = findings.Remedy("train in mixed precision", {"train.bf16": True, "cost.market": "spot"})
    diagnosis = replace(diagnosis, findings=[findings.Finding("precision", "float32", remedies=[remedy])])
    assert "train.bf16=true cost.market=spot" in printed(*end.short_findings(diagnosis))[1]
    script = replace(diagnosis, recipe=False)
    for parts in (end.short_findings(script), diagnosis_renderables(script)):
        assert any("TrainingArguments(bf16=True)" in line for line in printed(*parts))
    saves = findings.Remedy("fewer", {"train.save_strategy": "steps", "train.save_steps": 40})
    assert remedy_words(saves, recipe=False) == ["TrainingArguments(save_strategy='steps', save_steps=40)"]
    longer = findings.Remedy("longer", {"train.packing": False, "train.bf16": True})
    assert remedy_words(longer, recipe=False) == ["SFTConfig(packing=False, bf16=True)"]
    overrides = {"model.attn_implementation": "sdpa", "adapter.method": "lora"}
    elsewhere = ["from_pretrained(attn_implementation='sdpa')", "get_peft_model(model, LoraConfig())"]
    assert remedy_words(findings.Remedy("faster", overrides), recipe=False) == elsewhere
