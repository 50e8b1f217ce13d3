# at LEVEL COMMAND..., for benches: Weft's kernels, oneDNN, MKL, PyTorch's own kernels and XLA's compiler keep to these instructions.
# Sourced by bench_all.sh and bench_peers.sh. LEVEL: newest (all that the processor has), avx512 (without products of 16 bits), avx2 or
# sse41.
unset WEFT_LEVEL ONEDNN_MAX_CPU_ISA MKL_ENABLE_INSTRUCTIONS ATEN_CPU_CAPABILITY XLA_FLAGS LIBXSMM_TARGET # at() sets them

at() {
    local level=$1 ours=x86-64 theirs=default dnnl mkl xla xsmm
    shift
    case $level in
    newest)
        "$@"
        return
        ;;
    avx512) ours=x86-64-v4 theirs=avx512 dnnl=AVX512_CORE mkl=AVX512 xla=AVX512 xsmm=skx ;;
    avx2) ours=x86-64-v3 theirs=avx2 dnnl=AVX2 mkl=AVX2 xla=AVX2 xsmm=hsw ;;
    sse41) dnnl=SSE41 mkl=SSE4_2 xla=SSE4_2 xsmm=wsm ;;
    esac
    WEFT_LEVEL=$ours ONEDNN_MAX_CPU_ISA=$dnnl MKL_ENABLE_INSTRUCTIONS=$mkl ATEN_CPU_CAPABILITY=$theirs \
        XLA_FLAGS=--xla_cpu_max_isa=$xla LIBXSMM_TARGET=$xsmm "$@"
}
