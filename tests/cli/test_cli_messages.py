from __future__ import annotations

import logging
import os
import subprocess
import sys

from hf_efficient.cli.app import messages_on_stderr


def test_the_package_s_messages_go_to_stderr_during_the_block(capsys):
    logger = logging.getLogger("hf_efficient.recipe.train_fields")
    with messages_on_stderr():
        logger.info("told %d", 1)
        logger.debug("not told")
        logging.getLogger("bitsandbytes").info("not told either")
    logger.info("too late")
    assert capsys.readouterr() == ("", "told 1\n")


def test_the_first_start_says_what_it_waits_for_and_nothing_else(recipe, tmp_path):
    """In a process of its own, since this one may have imported the libraries already."""
    command = [sys.executable, "-c", "from hf_efficient.cli.app import main; main()", "validate", "r.yaml"]
    environment = {**os.environ, "HF_EFFICIENT_CACHE": str(tmp_path / "empty")}
    first, second = (
        subprocess.run(command, capture_output=True, text=True, env=environment, check=True) for _ in range(2)
    )
    assert first.stderr == "Reading the fields of the installed TRL (once per version) ...\n"
    assert (second.stdout, second.stderr) == ("ok: tiny (sft, lora)\n", "")
    assert first.stdout == second.stdout
