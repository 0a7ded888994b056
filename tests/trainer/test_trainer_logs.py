"""The figures in a Trainer's logs: what reports have, what people read, and what stays as it was."""

import json

import pytest
from tiny_training import assert_same_run, build_model, causal_trainer, every, records, train_causal, trl_trainer
from transformers import EarlyStoppingCallback, PrinterCallback, ProgressCallback, TrainerCallback

from hf_efficient import EfficientDPOTrainer, EfficientSFTTrainer
from hf_efficient.accounting.account import account_of, read_account
from hf_efficient.callbacks.progress import FigureBar
from hf_efficient.recording.live import PREFIX
from hf_efficient.trainer import EfficientTrainer

NAMES = (
    "step_seconds_p50 step_seconds_p95 non_padding_tokens_per_second padding_share data_wait_share unattributed_share "
    "wall_seconds"
)
ALWAYS = {PREFIX + name for name in NAMES.split()}


class Seen(TrainerCallback):
    """What a reporting callback gets."""

    def __init__(self):
        self.logs = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs.append(dict(logs))


def figures(logs):
    return {key: value for key, value in logs.items() if key.startswith(PREFIX)}


def padding_of(tokens):
    return 1 - sum(one.non_padding for one in tokens) / sum(one.processed for one in tokens)


def test_training_logs_and_the_closing_summary_have_them_and_evaluations_have_not(tiny_dir, tmp_path):
    seen = Seen()
    settings = {"max_steps": 6, "logging_steps": 2, "eval_rows": 4, **every(evaluate=3), "callbacks": [seen]}
    trainer = causal_trainer(EfficientTrainer, tiny_dir, tmp_path, **settings)
    output = trainer.train()
    training = [logs for logs in seen.logs if "loss" in logs]
    (closing,) = (logs for logs in seen.logs if "train_runtime" in logs)
    evaluations = [logs for logs in seen.logs if "eval_loss" in logs]
    assert len(training) == 3
    assert len(evaluations) == 2
    assert all(set(figures(logs)) >= ALWAYS for logs in training)
    assert set(figures(closing)) >= {key.replace(PREFIX, PREFIX + "run/") for key in ALWAYS}
    assert [figures(logs) for logs in evaluations] == [{}, {}]
    # A padded step: 4 rows of the longest one; the windows tile the run, and the summary is of all of it.
    tokens = [record.tokens for record in records(tmp_path)]
    shares = [logs[PREFIX + "padding_share"] for logs in training]
    expected = [padding_of(tokens[at : at + 2]) for at in (0, 2, 4)]
    assert shares == pytest.approx(expected)
    whole = padding_of(tokens)
    assert closing[PREFIX + "run/padding_share"] == pytest.approx(whole)
    assert output.metrics[PREFIX + "run/padding_share"] == pytest.approx(whole)
    walls = [*(logs[PREFIX + "wall_seconds"] for logs in training), closing[PREFIX + "run/wall_seconds"]]
    assert walls == sorted(walls)
    assert all(PREFIX + "forecast_wall_seconds" in logs for logs in training)


@pytest.mark.parametrize("mixin", [{"log_metrics": False}, {"record_steps": False}])
def test_they_can_be_left_out(tiny_dir, tmp_path, mixin):
    seen = Seen()
    train_causal(EfficientTrainer, tiny_dir, tmp_path, callbacks=[seen], mixin=mixin)
    assert [figures(logs) for logs in seen.logs] == [{}] * 4


@pytest.mark.slow
def test_over_sft_and_dpo_trainers_which_log_themselves(tiny_dir, tiny_tokenizer, tmp_path):
    seen = Seen()

    def train(kind, name):
        more = {"callbacks": [seen]}
        trl_trainer(kind, build_model(tiny_dir, "lora"), tmp_path / name, tiny_tokenizer, more, max_steps=2).train()

    train(EfficientSFTTrainer, "sft")
    assert all(set(figures(logs)) >= ALWAYS for logs in seen.logs if "loss" in logs)
    assert all("entropy" in logs for logs in seen.logs if "loss" in logs)  # its own are there as well
    seen.logs.clear()
    train(EfficientDPOTrainer, "dpo")
    assert all(figures(logs) for logs in seen.logs)
    assert all("rewards/margins" in logs for logs in seen.logs if "loss" in logs)


@pytest.mark.slow
def test_best_model_early_stopping_and_resumption_are_undisturbed(tiny_dir, tmp_path):
    best = {"load_best_model_at_end": True, "metric_for_best_model": "loss"}
    settings = {"max_steps": 8, "eval_rows": 4, **every(evaluate=2, save=2), **best}

    def train(output, resume=None, **mixin):
        stopping = [EarlyStoppingCallback(early_stopping_patience=2)]
        trainer = train_causal(
            EfficientTrainer, tiny_dir, output, callbacks=stopping, mixin=mixin, **settings, resume=resume
        )
        return trainer

    plain, ours = train(tmp_path / "plain", log_metrics=False), train(tmp_path / "ours")
    assert_same_run(ours, plain)
    best, expected = ((one.state.best_metric, one.state.best_global_step) for one in (ours, plain))
    assert best == expected

    def untimed(trainer):
        return [
            {key: value for key, value in entry.items() if not key.startswith(PREFIX) and "_per_second" not in key}
            | dict.fromkeys(key for key in entry if key.endswith("runtime"))
            for entry in trainer.state.log_history
        ]

    assert untimed(ours) == untimed(plain)
    saved = json.loads((tmp_path / "ours/checkpoint-4/trainer_state.json").read_text())
    assert figures(saved["log_history"][-2]) or figures(saved["log_history"][-1])
    again = train(tmp_path / "ours", resume=str(tmp_path / "ours/checkpoint-4"))
    assert_same_run(again, plain)


def test_printed_logs_stay_as_they_were(tiny_dir, tmp_path, capsys):
    silent = train_causal(EfficientTrainer, tiny_dir, tmp_path / "a", max_steps=1)
    printed = capsys.readouterr().out
    assert "'loss': " in printed
    assert PREFIX not in printed
    assert sum(isinstance(one, PrinterCallback) for one in silent.callback_handler.callbacks) == 1

    shown = causal_trainer(EfficientTrainer, tiny_dir, tmp_path / "b", max_steps=2, disable_tqdm=False)
    assert [type(one) for one in shown.callback_handler.callbacks if isinstance(one, ProgressCallback)] == [FigureBar]
    shown.train()
    told = capsys.readouterr()
    assert "'loss': " in told.out + told.err
    assert PREFIX not in told.out + told.err
    assert "tok/s" in told.err


def test_a_bar_of_ones_own_is_left_alone(tiny_dir, tmp_path):
    class Own(ProgressCallback): ...

    trainer = causal_trainer(EfficientTrainer, tiny_dir, tmp_path, callbacks=[Own()], disable_tqdm=False)
    bars = [type(one) for one in trainer.callback_handler.callbacks if isinstance(one, ProgressCallback)]
    assert bars == [Own, FigureBar]


def test_the_data_sets_of_an_evaluation_are_one(tiny_dir, tmp_path):
    trainer = train_causal(
        EfficientTrainer, tiny_dir, tmp_path, max_steps=2, eval_rows={"a": 4, "b": 2}, **every(evaluate=2)
    )
    trainer.evaluate(metric_key_prefix="test")
    (during,) = read_account(tmp_path / "efficiency/run.json").evaluations
    assert (during.step, sorted(during.metrics)) == (2, ["a_loss", "b_loss"])
    logged = next(entry for entry in trainer.state.log_history if "eval_a_loss" in entry)
    assert during.metrics["a_loss"] == logged["eval_a_loss"]
    *_, after = account_of(tmp_path / "efficiency").evaluations
    assert (after.step, sorted(after.metrics)) == (2, ["a_loss", "b_loss"])
