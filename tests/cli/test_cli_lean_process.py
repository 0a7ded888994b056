"""A process of its own loads no compiler and is not searched for garbage; another's process is left alone."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import torch  # noqa: F401  a process that has loaded it is not the plan's own

from hf_efficient.cli.plan import lean_imports

LOADING = """
import gc, os, sys
from hf_efficient.cli.plan import lean_imports
try:
    with lean_imports():
        within = gc.isenabled()
        {load}
except ImportError:
    pass
print(within, gc.isenabled(), gc.get_freeze_count() > 0, os.environ["TORCHDYNAMO_DISABLE"])
print(*(name for name in ("torch._inductor.compile_fx", "bitsandbytes") if name in sys.modules))
"""


def printed(load, **variables):
    environment = {name: value for name, value in os.environ.items() if name != "TORCHDYNAMO_DISABLE"}
    code = [sys.executable, "-c", LOADING.format(load=load)]
    done = subprocess.run(code, capture_output=True, text=True, check=True, env={**environment, **variables})
    return done.stdout.splitlines()


def test_bitsandbytes_loads_without_the_compiler():
    assert printed("import bitsandbytes") == ["False True True 1", "bitsandbytes"]


def test_all_is_put_back_where_an_import_fails():
    assert printed("import there_is_no_such_package")[0] == "False True True 1"


def test_what_the_user_has_set_stays():
    assert printed("import json", TORCHDYNAMO_DISABLE="0")[0] == "False True True 0"


def test_a_process_that_has_loaded_torch_is_left_alone(monkeypatch):
    monkeypatch.delenv("TORCHDYNAMO_DISABLE", raising=False)
    frozen = gc.get_freeze_count()
    with lean_imports():
        assert gc.isenabled()
    assert "TORCHDYNAMO_DISABLE" not in os.environ
    assert gc.get_freeze_count() == frozen
