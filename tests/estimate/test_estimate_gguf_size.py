"""Predicted sizes of GGUF files against llama.cpp's published table."""

import pytest

from hf_efficient.errors import ModelError
from hf_efficient.estimate.gguf_size import Tensor, gguf_bytes, gguf_shape, type_of
from hf_efficient.facts.models import find_model

# GiB of meta-llama/Llama-3.1-8B: https://github.com/ggml-org/llama.cpp/blob/311c2c9f/tools/quantize/README.md
PUBLISHED = {"F16": 14.96, "Q8_0": 7.95, "Q6_K": 6.14, "Q5_K_M": 5.33, "Q4_K_M": 4.58, "Q3_K_L": 4.02, "Q2_K": 2.95}


@pytest.mark.parametrize("mix", PUBLISHED)
def test_llama_3_1_8b_is_within_half_a_percent_of_what_is_published(mix):
    shape = gguf_shape(find_model("meta-llama/Llama-3.1-8B").config)
    assert gguf_bytes(shape, mix) / 2**30 == pytest.approx(PUBLISHED[mix], rel=0.005)


def test_a_layer_of_smollm2_by_hand():
    shape = gguf_shape(find_model("HuggingFaceTB/SmolLM2-135M").config)
    # 30 layers, hidden 576, MLP 1536, 9 and 3 heads of 64, vocabulary 49,152, tied; 34 bytes for 32 values
    matrices = 49_152 * 576 + 30 * (576 * (576 + 192 + 192 + 576) + 3 * 576 * 1536)
    assert gguf_bytes(shape, "Q8_0") == matrices // 32 * 34 + 4 * (30 * 2 * 576 + 576)
    # no block of 256 values fits a row of 576: Q4_K becomes Q5_0, and Q6_K Q8_0; the rows of 1,536 stay
    wide, narrow = Tensor("down_proj", 3, 576, 1536), Tensor("v_proj", 3, 192, 576)
    assert [type_of(one, shape, "Q4_K_M") for one in (wide, narrow)] == ["Q4_K", "Q5_0"]
    assert type_of(Tensor("embed_tokens", 0, 49_152, 576), shape, "Q6_K") == "Q8_0"
    assert type_of(Tensor("q_proj", 0, 64, 40), shape, "Q8_0") == "F16"


def test_another_architecture_is_refused():
    with pytest.raises(ModelError, match=r"^--to: GGUF files are written for llama, mistral, qwen2, qwen3, and this"):
        gguf_shape(find_model("google/gemma-2-2b").config)
