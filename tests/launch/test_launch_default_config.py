"""The user's own default configuration of accelerate, which our launches do not read."""

from __future__ import annotations

import os
import subprocess

import pytest

from hf_efficient.launch.command import Layout, accelerate_command
from hf_efficient.recipe.load import load_recipe

pytestmark = pytest.mark.slow

FSDP = """\
compute_environment: LOCAL_MACHINE
debug: true
distributed_type: FSDP
fsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: SIZE_BASED_WRAP, fsdp_min_num_params: 1}
mixed_precision: bf16
num_machines: 1
num_processes: 1
use_cpu: false
"""
TELLS = """\
import os
print({name: os.environ.get(name) for name in ("ACCELERATE_USE_FSDP", "ACCELERATE_DEBUG_MODE", "FSDP_VERSION")})
"""


def test_it_does_no_harm(tmp_path):
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate/default_config.yaml").write_text(FSDP)
    (tmp_path / "tells.py").write_text(TELLS)
    command = accelerate_command(load_recipe("quickstart/lora"), "", [], Layout(1, 1, 1), module="tells")
    environment = {
        **os.environ,
        "HF_HOME": str(tmp_path),
        "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert "{'ACCELERATE_USE_FSDP': None, 'ACCELERATE_DEBUG_MODE': None, 'FSDP_VERSION': None}" in done.stdout
    without = [one for one in command if not one.startswith("--config_file")]  # so it would be
    done = subprocess.run(without, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert "'ACCELERATE_USE_FSDP': None" not in done.stdout  # accelerate 1.15 does not come so far as to start it
