"""Names of real kernels and operators: what they are, and how they are shortened."""

import pytest

from hf_efficient.trace.families import kernel_family, operator_family, short_name

REDUCE = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, 4> > >(int)"
KERNELS = {
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "communication",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)": "communication",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)": "communication",
    "Memcpy HtoD (Pinned -> Device)": "copy",
    "CopyHostToDevice": "copy",
    "Memset (Device)": "memset",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2>(float*)": "copy",
    "void at::native::elementwise_kernel<128, 2, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>": "copy",
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn": "matmul",
    "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNT": "matmul",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64": "matmul",
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>": "matmul",
    "Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT64x64x64": "matmul",
    "void gemv2T_kernel_val<int, int, __nv_bfloat16>": "matmul",
    "void kgemm_4bit_inference_naive<__nv_bfloat16, 128, 16>(int, int, int)": "matmul",
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4> >(flash::Flash_fwd_params)": "attention",
    "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::half_t>)": "attention",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x64x64_4x1x1_kernel0_0": "attention",
    "void at::native::multi_tensor_apply_kernel<at::native::FusedOptimizerTensorListMetadata<4>>": "optimizer",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>": "optimizer",
    "kOptimizerStatic8bit2StateBlockwise": "optimizer",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float)": "normalisation",
    "void cunn_SoftMaxForward<8, float, float, float>(float*, float const*, int)": "reduction",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>": "reduction",
    "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16>": "embedding",
    "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<float>": "embedding",
    "void at::native::vectorized_elementwise_kernel<4, at::native::silu_kernel(TensorIteratorBase&)>": "elementwise",
    "void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>(float*, unsigned char*)": "elementwise",
    "triton_poi_fused__to_copy_convolution_mm_0": "elementwise",
    "triton_red_fused__softmax_addmm_2": "reduction",
    "triton_per_fused_native_layer_norm_1": "normalisation",
    "triton_tem_fused_mm_3": "matmul",
    "triton_tem_fused_flex_attention_1": "attention",
    "void fbgemm_gpu::invert_permute_kernel<int>(int, int const*)": "copy",
    "spin_for_a_while": "other",
}
OPERATORS = {
    "aten::mm": "matmul",
    "aten::addmm": "matmul",
    "aten::_scaled_dot_product_flash_attention": "attention",
    "aten::convolution_backward": "matmul",
    "aten::convert_something": "other",
    "aten::native_layer_norm": "normalisation",
    "aten::_fused_adamw_": "optimizer",
    "aten::_foreach_addcdiv_": "optimizer",
    "aten::_foreach_mul_": "elementwise",
    "aten::embedding": "embedding",
    "aten::copy_": "copy",
    "aten::zero_": "memset",
    "aten::add_": "elementwise",
    "aten::silu": "elementwise",
    "aten::sum": "reduction",
    "aten::_log_softmax": "reduction",
    "c10d::allreduce_": "communication",
    "nccl:all_reduce": "communication",
    "autograd::engine::evaluate_function: AddmmBackward0": "other",
    "aten::empty": "other",
    "aten::transpose": "other",
}


@pytest.mark.parametrize(("name", "family"), KERNELS.items())
def test_kernels(name, family):
    assert kernel_family(name) == family


@pytest.mark.parametrize(("name", "family"), OPERATORS.items())
def test_operators(name, family):
    assert operator_family(name) == family


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int, float)",
            "at::native::vectorized_elementwise_kernel [CUDAFunctor_add]",
        ),
        (
            "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>(float*)",
            "at::native::CatArrayBatchedCopy",
        ),
        (
            "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4>(Params)",
            "cutlass::Kernel [cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4]",
        ),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        ("ampere_sgemm_32x32_sliced1x4_tn", "ampere_sgemm_32x32_sliced1x4_tn"),
        ("void unbalanced<int", "unbalanced"),
        ("", ""),
    ],
)
def test_short_names(name, short):
    assert short_name(name) == short


def test_a_generic_kernel_says_what_it_computes():
    assert short_name(REDUCE).startswith("at::native::reduce_kernel [")


def test_a_long_name_is_cut():
    assert len(short_name("k" * 1000)) == 160
