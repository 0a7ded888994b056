"""Which packages are here, and their chatter."""

import logging
import sys

import pytest

import hf_efficient
from hf_efficient.errors import SetupError
from hf_efficient.facts.environment import is_installed, missing_package, quiet_imports, quieten_libraries


def test_a_module_is_found_without_being_run(tmp_path, monkeypatch):
    (tmp_path / "explosive.py").write_text("raise SystemExit", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert is_installed("explosive")
    assert "explosive" not in sys.modules
    assert not is_installed("no_such_module_anywhere")


BITSANDBYTES = (
    "The package bitsandbytes, for quantized models and 8-bit optimizers, is not installed: "
    "run `pip install 'hf-efficient[quantization]'`."
)


def test_a_package_of_an_extra_is_named_with_the_extra(monkeypatch):
    assert str(missing_package("bitsandbytes.nn")) == BITSANDBYTES
    assert missing_package("no_such_module_anywhere") is missing_package(None) is None
    monkeypatch.setitem(sys.modules, "trl", None)
    monkeypatch.delitem(sys.modules, "hf_efficient.trl_trainers", raising=False)
    with pytest.raises(ImportError, match=r"The package trl, .*pip install 'hf-efficient\[recipes\]'"):
        _ = hf_efficient.EfficientSFTTrainer


@pytest.fixture
def chatty():
    """The logger of a chatty library; its level is put back."""
    logger = logging.getLogger("bitsandbytes")
    level = logger.level
    yield logger
    logger.setLevel(level)


def test_what_is_logged_during_an_import_is_dropped_and_the_level_put_back(chatty, caplog):
    chatty.setLevel(logging.INFO)
    with quiet_imports():
        logging.getLogger("bitsandbytes.backends").warning("Failed to load")
        logging.getLogger("bitsandbytes.backends").error("broken")
    chatty.info("later")
    assert [record.getMessage() for record in caplog.records] == ["broken", "later"]
    assert chatty.level == logging.INFO


def test_the_level_is_put_back_after_an_import_that_fails(chatty):
    chatty.setLevel(logging.DEBUG)
    with pytest.raises(ImportError), quiet_imports():
        raise ImportError
    assert chatty.level == logging.DEBUG


def test_deepspeed_s_line_about_a_machine_without_gpu_is_held_back(chatty, capsys, recwarn):
    logger = logging.getLogger("DeepSpeed")
    handler = logging.StreamHandler(sys.stdout)
    before = list(logger.filters)
    quieten_libraries(debug=False)
    logger.addHandler(handler)
    try:
        logger.warning("Setting accelerator to CPU. If you have GPU or other accelerator, we were unable to detect it.")
        logger.warning("a real one")
    finally:
        logger.removeHandler(handler)
        logger.filters[:] = before
    assert capsys.readouterr().out == "a real one\n"


def test_a_resumed_run_s_other_save_steps_are_no_news():
    """A recipe may change them; transformers' other warnings of that logger stay."""
    logger = logging.getLogger("transformers.trainer_utils")
    before = list(logger.filters)
    quieten_libraries(debug=False)
    try:
        said = "Warning: The following arguments do not match the ones in the `trainer_state.json` within the ..."
        records = [logging.makeLogRecord({"msg": text}) for text in (said, "another")]
        assert [bool(logger.filter(one)) for one in records] == [False, True]
    finally:
        logger.filters[:] = before


def test_a_part_that_an_older_transformers_lacks(monkeypatch, tmp_path):
    (tmp_path / "made_home.py").write_text("from transformers import NotYetThere\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(hf_efficient._HOMES, "plan", "made_home")
    with pytest.raises(
        SetupError, match=r"^hf_efficient\.plan: .*NotYetThere.* Install transformers 5\.17 or newer\.$"
    ):
        hf_efficient.__getattr__("plan")
