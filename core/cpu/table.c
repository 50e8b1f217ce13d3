/* The table of the device `cpu`: a copy of `ref` whose slots are overridden by the fast ones, and memory whose large
 * blocks use huge pages. Made once and never changed. */
#include "core/cpu/cpu_impl.h"

#include <stdlib.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)

wf_status wf_cpu_alloc(wf_ctx *ctx, size_t bytes, void **data)
{
    /* Large arrays are read in strides over many pages; with pages of 2 MiB the translation caches hold them. They are
     * asked for, not touched: see core/pool.c. */
    const bool huge = bytes >= HUGE_PAGE;
    if (posix_memalign(data, huge ? HUGE_PAGE : 64, bytes ? bytes : 1) != 0) {
        *data = NULL;
        WF_FAIL(WF_ERR_MEMORY, "no memory for a block of %zu bytes", bytes);
    }
    if (huge)
        madvise(*data, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
    return WF_OK;
}

void wf_cpu_release(wf_ctx *ctx, void *data, size_t bytes)
{
    free(data);
}

/* Activations, functions of rows, attention, losses. */
static void take_functions(wf_kernels *table)
{
    table->act_forward = wf_cpu_act_forward;
    table->act_backward = wf_cpu_act_backward;
    table->binary = wf_cpu_binary;
    table->fold = wf_cpu_fold;
    table->dropout = wf_cpu_dropout;
    table->epilogue_forward = wf_cpu_epilogue_forward;
    table->sum = wf_cpu_sum;
    table->sum_squares = wf_cpu_sum_squares;
    table->softmax_forward = wf_cpu_softmax_forward;
    table->softmax_backward = wf_cpu_softmax_backward;
    table->attention_forward = wf_cpu_attention_forward;
    table->attention_backward = wf_cpu_attention_backward;
    table->neighbourhood_forward = wf_wide_neighbourhood_forward;
    table->neighbourhood_backward = wf_wide_neighbourhood_backward;
    table->gates_forward = wf_cpu_gates_forward;
    table->gates_backward = wf_cpu_gates_backward;
    table->row_most = wf_cpu_row_most;
    table->row_most_backward = wf_cpu_row_most_backward;
    table->take_forward = wf_cpu_take_forward;
    table->take_backward = wf_cpu_take_backward;
    table->loss_forward = wf_cpu_loss_forward;
    table->loss_backward = wf_cpu_loss_backward;
    table->nll_forward = wf_cpu_nll_forward;
    table->nll_backward = wf_cpu_nll_backward;
    table->entropy_forward = wf_cpu_entropy_forward;
    table->entropy_backward = wf_cpu_entropy_backward;
}

static wf_kernels overridden(void)
{
    wf_kernels table = *wf_kernels_ref();
    table.name = "cpu";
    table.library = wf_cpu_library;
    table.multiplies = wf_cpu_multiplies;
    table.alloc = wf_cpu_alloc;
    table.release = wf_cpu_release;
    table.copy = wf_cpu_copy;
    table.fill = wf_cpu_fill;
    table.random = wf_cpu_random;
    table.conv_forward = wf_cpu_conv_forward;
    table.conv_backward_data = wf_cpu_conv_backward_data;
    table.conv_backward_filter = wf_cpu_conv_backward_filter;
    table.bias_backward = wf_cpu_bias_backward;
    table.epilogue_backward = wf_cpu_epilogue_backward;
    table.matmul = wf_cpu_matmul;
    table.matmul_stack = wf_cpu_matmul_stack;
    table.pool_forward = wf_cpu_pool_forward;
    table.pool_backward = wf_cpu_pool_backward;
    table.pool_places = wf_cpu_pool_places;
    table.unpool_index = wf_cpu_unpool_index;
    table.pick_pixels = wf_cpu_pick_pixels;
    table.resample_forward = wf_cpu_resample_forward;
    table.resample_backward = wf_cpu_resample_backward;
    table.taps = wf_cpu_taps;
    table.norm_stats = wf_cpu_norm_stats;
    table.norm_forward = wf_cpu_norm_forward;
    table.norm_backward_stats = wf_cpu_norm_backward_stats;
    table.norm_backward = wf_cpu_norm_backward;
    table.group_norm_stats = wf_cpu_group_norm_stats;
    table.group_norm_forward = wf_cpu_group_norm_forward;
    table.group_norm_backward_stats = wf_cpu_group_norm_backward_stats;
    table.group_norm_backward = wf_cpu_group_norm_backward;
    take_functions(&table);
    table.optim_update = wf_cpu_optim_update;
    table.shutdown = wf_cpu_shutdown;
    return table;
}

const wf_kernels *wf_kernels_cpu(void)
{
    static wf_kernels table;
    /* Contexts are opened by the main thread, so no lock is needed. */
    if (!table.name)
        table = overridden();
    return &table;
}
