from __future__ import annotations

import sys
from types import ModuleType

from hf_efficient.facts.environment import is_installed


def test_a_module_is_found_without_being_run(tmp_path, monkeypatch):
    (tmp_path / "explosive.py").write_text("raise SystemExit", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert is_installed("explosive")
    assert "explosive" not in sys.modules
    assert not is_installed("no_such_module_anywhere")


def test_a_module_without_a_specification(monkeypatch):
    monkeypatch.setitem(sys.modules, "by_hand", ModuleType("by_hand"))
    assert is_installed("by_hand")
