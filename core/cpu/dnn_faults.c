/* Forms that an implementation inside oneDNN computes wrong or crashes in. It is passed over for them: oneDNN's next
 * one is taken, and where none is left the form is computed in f32 or by ref. tests/core/cpu_bf16.c has a case of each
 * line. */
#include "core/cpu/dnn_impl.h"

#include <string.h>

static bool pads(const wf_dnn_key *key, int d)
{
    return key->lo[d] > 0 || key->hi[d] > 0;
}

/* Returns true if some tap meets only padding. */
static bool has_idle_tap(const wf_dnn_key *key)
{
    for (int d = 0; d < key->nd; d++)
        for (int64_t k = 0; k < key->kernel[d]; k++) {
            bool used = false;
            for (int64_t o = 0; o < key->out[d] && !used; o++) {
                const int64_t i = o * key->stride[d] - key->lo[d] + k * key->dilation[d];
                used = i >= 0 && i < key->in[d];
            }
            if (!used)
                return true;
        }
    return false;
}

/* Returns true if some window lies wholly in padding. */
static bool has_idle_window(const wf_dnn_key *key)
{
    for (int d = 0; d < key->nd; d++)
        for (int64_t o = 0; pads(key, d) && o < key->out[d]; o++) {
            bool used = false;
            for (int64_t k = 0; k < key->kernel[d] && !used; k++) {
                const int64_t i = o * key->stride[d] - key->lo[d] + k * key->dilation[d];
                used = i >= 0 && i < key->in[d];
            }
            if (!used)
                return true;
        }
    return false;
}

/* Returns true if no tap of any window reads some element of x. */
static bool has_idle_input(const wf_dnn_key *key)
{
    for (int d = 0; d < key->nd; d++)
        for (int64_t i = 0; i < key->in[d]; i++) {
            bool used = false;
            for (int64_t k = 0; k < key->kernel[d] && !used; k++) {
                const int64_t at = i + key->lo[d] - k * key->dilation[d];
                used = at >= 0 && at % key->stride[d] == 0 && at / key->stride[d] < key->out[d];
            }
            if (!used)
                return true;
        }
    return false;
}

static bool has_idle_tap_in_volume(const wf_dnn_key *key)
{
    return key->nd == 3 && has_idle_tap(key);
}

static bool strides_in_padded_depth(const wf_dnn_key *key)
{
    return key->nd == 3 && key->stride[0] > 1 && pads(key, 0);
}

static bool starts_twice_in_padding(const wf_dnn_key *key)
{
    return key->nd == 3 && key->stride[0] > 1 && key->lo[0] > key->stride[0];
}

static bool is_wide_group(const wf_dnn_key *key)
{
    return key->groups > 1 && (key->flags & WF_DNN_WIDE);
}

/* Returns true if a volume is shorter than a stride or no longer than the reach of the filter in some dimension. */
static bool is_small_volume(const wf_dnn_key *key)
{
    bool small = false;
    for (int d = 0; d < key->nd; d++)
        small = small || key->in[d] < key->stride[d] || key->in[d] <= (key->kernel[d] - 1) * key->dilation[d];
    return key->nd == 3 && small;
}

static bool is_odd_point(const wf_dnn_key *key)
{
    bool point = key->f / key->groups % 2 == 1;
    for (int d = 0; d < key->nd; d++)
        point = point && key->kernel[d] == 1;
    return point;
}

/* Dilated in any dimension but the last, also where the filter has one tap there, with a rest of channels a group. */
static bool is_dilated_with_rest(const wf_dnn_key *key)
{
    bool dilated = false;
    for (int d = 0; d + 1 < key->nd; d++)
        dilated = dilated || key->dilation[d] > 1;
    return dilated && key->c / key->groups % 16 != 0;
}

static bool is_dilated_with_rest_beyond_32(const wf_dnn_key *key)
{
    return key->c / key->groups > 32 && is_dilated_with_rest(key);
}

static bool is_dilated_with_rest_and_wide(const wf_dnn_key *key)
{
    return key->out[key->nd - 1] > 28 && is_dilated_with_rest(key);
}

/* Returns true if the rows of x are shorter than a stride. */
static bool is_narrower_than_stride(const wf_dnn_key *key)
{
    return key->in[key->nd - 1] < key->stride[key->nd - 1];
}

/* Its windows leave gaps in one dimension, and are not single pixels without padding. */
static bool leaves_gaps(const wf_dnn_key *key)
{
    bool gaps = false, more = false;
    for (int d = 0; d < key->nd; d++) {
        gaps = gaps || key->kernel[d] < key->stride[d];
        more = more || key->kernel[d] > 1 || pads(key, d);
    }
    return gaps && more;
}

/* The gradient of a filter of one pixel, with strides and without low padding, in lines and images: oneDNN copies x to
 * its scratchpad without the strides. It books pixels * channels numbers, but lets a later piece of the pixels begin at
 * pixel * block: with fewer channels than a block, that is behind the end. */
static bool copies_strided_pixels(const wf_dnn_key *key, int64_t block)
{
    bool strided = false;
    for (int d = 0; d < key->nd; d++) {
        strided = strided || key->stride[d] > 1;
        if (key->kernel[d] > 1 || key->lo[d] > 0)
            return false;
    }
    return strided && key->nd < 3 && key->c / key->groups < block;
}

static bool copies_below_8_channels(const wf_dnn_key *key)
{
    return copies_strided_pixels(key, 8);
}

static bool copies_below_16_channels(const wf_dnn_key *key)
{
    return copies_strided_pixels(key, 16);
}

/* Dilated rows with strides, and more than 14 columns of low padding. */
static bool strides_in_wide_padding(const wf_dnn_key *key)
{
    const int d = key->nd - 1;
    return key->dilation[d] > 1 && key->stride[d] > 1 && key->lo[d] > 14;
}

/* More channels than one pass over them adds up: later passes add to what is there. */
static bool adds_in_passes(const wf_dnn_key *key)
{
    return key->c / key->groups > 128;
}

static bool is_any(const wf_dnn_key *key)
{
    return true;
}

typedef struct fault {
    int last; /* version that has it, 100 major + minor; 0: all so far */
    wf_dnn_kind kind;
    wf_dtype dtype;
    const char *implementation, *with; /* how its name begins, and what is in it */
    bool (*form)(const wf_dnn_key *key);
    const char *what;
} fault;

static const fault known[] = {
    {0, WF_DNN_FORWARD, WF_BF16, "brgconv", "amx", has_idle_window, "crashes"},
    /* Version 3.7 (Debian 13) calls the same brg_conv. By AMX it is wrong in parts of an image, of plain forms too
     * (tests/layers/equiv_spatial.c, on two ranks and more), and no rule was found that tells which: none is taken. */
    {0, WF_DNN_FORWARD, WF_BF16, "brg_conv", "", has_idle_window, "crashes"},
    {0, WF_DNN_FORWARD, WF_BF16, "brg_conv", "amx", is_any, "is wrong in parts of an image"},
    {0, WF_DNN_FORWARD, WF_BF16, "brgconv", "amx", leaves_gaps, "is wrong on several threads"},
    {0, WF_DNN_FORWARD, WF_F32, "brg_conv", "", has_idle_window, "crashes"},
    {0, WF_DNN_BACKWARD_DATA, WF_BF16, "brg", "amx", has_idle_input, "crashes"},
    {0, WF_DNN_BACKWARD_FILTER, WF_BF16, "jit", "", has_idle_tap, "leaves the tap's gradient unwritten, or crashes"},
    {0, WF_DNN_BACKWARD_FILTER, WF_BF16, "jit", "amx", is_dilated_with_rest_beyond_32, "is wrong, or crashes"},
    {0, WF_DNN_BACKWARD_FILTER, WF_BF16, "jit_bf16", "", is_dilated_with_rest_and_wide,
     "takes wrong rows of x, or reads behind its workspace"},
    {0, WF_DNN_BACKWARD_FILTER, WF_BF16, "jit_bf16", "", is_narrower_than_stride, "reads behind x"},
    {0, WF_DNN_BACKWARD_FILTER, WF_BF16, "brg", "", has_idle_tap, "leaves the tap's gradient unwritten"},
    {0, WF_DNN_BACKWARD_FILTER, WF_BF16, "jit", "", strides_in_padded_depth, "leaves a part of the gradient unwritten"},
    {0, WF_DNN_BACKWARD_FILTER, WF_BF16, "jit_bf16", "", is_small_volume,
     "leaves a part of the gradient unwritten, or reads behind x"},
    /* Volumes have this fault, too; core/cpu/conv.c clears their gradient first. */
    {0, WF_DNN_BACKWARD_FILTER, WF_BF16, "jit_bf16", "", is_wide_group, "on one thread adds to what was there"},
    {0, WF_DNN_BACKWARD_FILTER, WF_F32, "", "", has_idle_tap_in_volume, "writes where it should not"},
    {0, WF_DNN_BACKWARD_FILTER, WF_F32, "", "", starts_twice_in_padding, "reads where it should not"},
    {0, WF_DNN_BACKWARD_FILTER, WF_F32, "jit", "avx512", strides_in_wide_padding, "is wrong"},
    /* In version 2.6 and in all until 3.12. */
    {0, WF_DNN_BACKWARD_FILTER, WF_F32, "jit_1x1", "avx2", copies_below_8_channels, "writes behind its scratchpad"},
    {0, WF_DNN_BACKWARD_FILTER, WF_F32, "jit_1x1", "avx512", copies_below_16_channels, "writes behind its scratchpad"},
    /* No tensor of the pool has such a y; one that a program wraps may. tests/outside/benchdnn_shapes.c has a case. */
    {0, WF_DNN_FORWARD, WF_F32, "jit_1x1", "sse41", adds_in_passes, "crashes where y is not aligned to 16 bytes"},
    {0, WF_DNN_BACKWARD_FILTER, WF_BF16, "jit_bf16_1x1", "", copies_below_16_channels, "writes behind its scratchpad"},
    {206, WF_DNN_BACKWARD_DATA, WF_BF16, "", "", is_odd_point, "multiplies by what lies behind dy"},
};

const char *wf_dnn_fault(const wf_dnn_key *key, const char *implementation)
{
    /* The version of the library that runs, which may be newer than the headers. */
    const dnnl_version_t *const library = dnnl_version();
    const int version = 100 * library->major + library->minor;
    /* Version 3.7 wraps some, as in "jit_uni_ncsp_convolution:conv+brg_conv_fwd:avx512_core". */
    const char *const inner = strrchr(implementation, '+'), *const name = inner ? inner + 1 : implementation;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const fault *f = &known[i];
        if ((f->last == 0 || version <= f->last) && key->kind == (int32_t)f->kind && key->dtype == (int32_t)f->dtype &&
            strncmp(name, f->implementation, strlen(f->implementation)) == 0 && strstr(name, f->with) && f->form(key))
            return f->what;
    }
    return NULL;
}
