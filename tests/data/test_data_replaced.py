from __future__ import annotations

from types import ModuleType

import pytest

from hf_efficient.data.sources import replaced


def test_a_variable_is_put_back_whatever_happens():
    module = ModuleType("some")
    module.limit = 3
    with replaced(module, "limit", 4):
        assert module.limit == 4
    assert module.limit == 3
    with pytest.raises(ZeroDivisionError), replaced(module, "limit", 4):
        _ = 1 // 0
    assert module.limit == 3


def test_a_variable_that_is_not_there_is_not_made():
    module = ModuleType("some")
    with pytest.raises(AttributeError), replaced(module, "limit", 4):
        pass
    assert not hasattr(module, "limit")
