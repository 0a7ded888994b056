"""Names of real kernels and operators: what they are, and how they are shortened."""

from hf_efficient.trace.families import kernel_family, operator_family, short_name

REDUCE = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, 4> > >(int)"
KERNELS = {
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "communication",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)": "communication",
    "Memcpy HtoD (Pinned -> Device)": "copy",
    "Memset (Device)": "memset",
    "void at::native::elementwise_kernel<128, 2, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>": "copy",
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn": "matmul",
    "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNT": "matmul",
    "Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT64x64x64": "matmul",
    "void gemv2T_kernel_val<int, int, __nv_bfloat16>": "matmul",
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4> >(flash::Flash_fwd_params)": "attention",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x64x64_4x1x1_kernel0_0": "attention",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>": "optimizer",
    "kOptimizerStatic8bit2StateBlockwise": "optimizer",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float)": "normalisation",
    "void cunn_SoftMaxForward<8, float, float, float>(float*, float const*, int)": "reduction",
    "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16>": "embedding",
    "void at::native::vectorized_elementwise_kernel<4, at::native::silu_kernel(TensorIteratorBase&)>": "elementwise",
    "triton_poi_fused__to_copy_convolution_mm_0": "elementwise",
    "triton_red_fused__softmax_addmm_2": "reduction",
    "triton_per_fused_native_layer_norm_1": "normalisation",
    "triton_tem_fused_mm_3": "matmul",
    "triton_tem_fused_flex_attention_1": "attention",
    "void fbgemm_gpu::invert_permute_kernel<int>(int, int const*)": "copy",
    "spin_for_a_while": "other",
}
OPERATORS = {
    "matmul": "aten::addmm aten::convolution_backward",
    "attention": "aten::_scaled_dot_product_flash_attention",
    "normalisation": "aten::native_layer_norm",
    "optimizer": "aten::_fused_adamw_ aten::_foreach_addcdiv_",
    "elementwise": "aten::_foreach_mul_ aten::add_ aten::silu",
    "embedding": "aten::embedding",
    "copy": "aten::copy_",
    "memset": "aten::zero_",
    "reduction": "aten::sum aten::_log_softmax",
    "communication": "c10d::allreduce_ nccl:all_reduce",
    "other": "autograd::engine::evaluate_function:AddmmBackward0 aten::empty aten::transpose aten::convert_something",
}
ELEMENTWISE = "at::native::vectorized_elementwise_kernel"
CUTLASS = "cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4"
SHORT = {
    f"void {ELEMENTWISE}<4, at::native::CUDAFunctor_add<float> >(int)": f"{ELEMENTWISE} [CUDAFunctor_add]",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, 1>(float*)": "at::native::CatArrayBatchedCopy",
    f"void cutlass::Kernel<{CUTLASS}>(Params)": f"cutlass::Kernel [{CUTLASS}]",
    "Memcpy HtoD (Pinned -> Device)": "Memcpy HtoD (Pinned -> Device)",
    "ampere_sgemm_32x32_sliced1x4_tn": "ampere_sgemm_32x32_sliced1x4_tn",
    "void unbalanced<int": "unbalanced",
    "": "",
    "k" * 1000: "k" * 160,
}


def test_kernels_have_a_family():
    assert {name: kernel_family(name) for name in KERNELS} == KERNELS


def test_operators_have_a_family():
    for family, names in OPERATORS.items():
        assert {name: operator_family(name) for name in names.split()} == dict.fromkeys(names.split(), family)


def test_long_names_have_a_short_one():
    assert {name: short_name(name) for name in SHORT} == SHORT
    assert short_name(REDUCE).startswith("at::native::reduce_kernel [")
