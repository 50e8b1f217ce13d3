/* The kernel table: every piece of arithmetic that Weft does on tensors goes through one of these slots.
 *
 * Three fillings: `ref` (core/ref, plain loops, every sum in double and in a fixed order: the oracle), `cpu` (core/cpu,
 * oneDNN and OpenMP; starts as a copy of `ref` and overrides slots) and `cuda` (core/cuda, which fills every slot by
 * itself). No slot is NULL but `library`, `multiplies`, the four of capture, and range_push with range_pop, where NULL
 * has the meaning that is said there. A form that a filling cannot do is WF_ERR_UNSUPPORTED of its own function.
 *
 * Every slot has a function type, named after the slot or, where several share it, after what they have in common. A
 * filling declares its functions by these types: `wf_conv_fn wf_cpu_conv_forward;`.
 *
 * Rules for all slots
 * - Arrays are dense in their order. Arrays of rank 3 to 5 given to convolution, pooling and normalisation are
 *   channels-last; elementwise slots take arrays of equal shape and order and treat them as flat.
 * - Callers (layers) have checked shapes, types and options; a slot checks only what it alone can know (a label out of
 *   range, a type that it lacks).
 * - Outputs do not overlap inputs unless a slot says "in place". Every element of an output is written; with
 *   `accumulate` the result is added to what the output held.
 * - Any dimension may be 0. An empty input gives outputs as the mathematics says (sums are 0), never an error.
 * - Float types may be f32, f64, bf16, f16; the arrays of one call have one float type unless a slot says otherwise.
 *   Arithmetic is at least f32. "Or wide": where the others are of bf16 or f16, this one may be f32.
 * - Workspace comes from the pool of the context (wf_pool_take), never from malloc.
 * - Values that change from step to step (learning rate, iteration) come by pointer to device memory.
 */
#ifndef WF_CORE_KERNELS_AUTHOR_H
#define WF_CORE_KERNELS_AUTHOR_H

#include "core/act_author.h"
#include "core/attention_author.h"
#include "core/context.h"
#include "core/fold_author.h"
#include "core/gates_author.h"
#include "core/loss_author.h"
#include "core/neighbourhood_author.h"
#include "core/pooling_author.h"
#include "core/random_author.h"
#include "core/stack_author.h"
#include "core/status_author.h"
#include "core/update_author.h"

/* The end of a convolution or normalisation, in the same pass: y = act(v + noise * n), n standard normal. act is
 * WF_ACT_NONE, WF_ACT_RELU or WF_ACT_LEAKY_RELU (0 < slope): their derivative is known from the sign of y. */
typedef struct wf_epilogue {
    wf_act act;
    double slope;
    double noise; /* standard deviation; 0: none */
    wf_random random;
} wf_epilogue;

/* Geometry of a convolution over nd spatial dimensions, entries [0, nd). Output length
 * O = floor((L + pad_lo + pad_hi - dilation (kernel - 1) - 1) / stride) + 1. Pads may be negative (they crop). */
typedef struct wf_conv_geom {
    int nd; /* 1 to 3 */
    int64_t groups;
    int64_t kernel[WF_MAX_SPATIAL], stride[WF_MAX_SPATIAL], dilation[WF_MAX_SPATIAL];
    int64_t pad_lo[WF_MAX_SPATIAL], pad_hi[WF_MAX_SPATIAL];
} wf_conv_geom;

/* Upsampling of channels-last arrays. Each array is a part of a whole: x starts at in_lo, y at out_lo. In forward x
 * holds all elements that y reads, in backward y holds all elements that x reads. */
typedef struct wf_resample_geom {
    int nd;      /* 1 to 3 */
    bool linear; /* else nearest */
    bool align_corners;
    int64_t scale[WF_MAX_SPATIAL];                                             /* at least 1 */
    int64_t in[WF_MAX_SPATIAL], in_lo[WF_MAX_SPATIAL], out_lo[WF_MAX_SPATIAL]; /* in: lengths of the whole */
} wf_resample_geom;

typedef enum wf_binary {
    WF_BINARY_LINEAR = 0, /* y = alpha a + beta b */
    WF_BINARY_MUL,        /* y = alpha a b */
} wf_binary;

typedef enum wf_optim_kind {
    WF_OPTIM_SGD = 0,     /* g += decay p; m = momentum m + g; p -= lr (nesterov ? g + momentum m : m), or p -= lr g */
    WF_OPTIM_ADAM,        /* g += decay p; m, v; p -= lr (m / bias1) / (sqrt(v / bias2) + eps) */
    WF_OPTIM_ADAMW,       /* as ADAM, with p -= lr decay p instead of g += decay p */
    WF_OPTIM_RMSPROP,     /* g += decay p; v = alpha v + (1 - alpha) g g; p -= lr g / (sqrt(v) + eps) */
    WF_OPTIM_RADAM,       /* g += decay p; m, v; p -= lr (m / bias1) r sqrt(bias2) / (sqrt(v) + eps), with r of
                             wf_radam_factor; p -= lr (m / bias1) where r is 0 */
    WF_OPTIM_ADAGRAD,     /* g += decay p; v += g g; p -= lr g / (sqrt(v) + eps) */
    WF_OPTIM_RMSPROP_SGD, /* g += decay p; v = alpha v + (1 - alpha) g g; m = momentum m + (sgd + rms / (sqrt(v) + eps))
                             g; p -= lr m. state1 is m, state2 is v */
    WF_OPTIM_TRUST,       /* p -= lr r g; r = sqrt(squares[0] / squares[1]), 1 where one of them is 0. g is a direction:
                             grad_scale, clip_value and decay do not act on it */
} wf_optim_kind;

/* A number of elements: `value`, or the number in device memory if only the device knows it. */
typedef struct wf_count {
    double value;
    const double *device; /* NULL: value */
} wf_count;

#define WF_NORM_HEADS 8

/* Numbers that are sent ahead of the statistics of a part. */
typedef struct wf_norm_head {
    int n;                       /* 1 to WF_NORM_HEADS */
    double value[WF_NORM_HEADS]; /* the first is the number of elements in each column, which norm_merge reads; others
                                    are the caller's */
} wf_norm_head;

/* Made by the filling; `cuda` hands out its cudaStream_t and cudaEvent_t. */
typedef struct wf_stream wf_stream;
typedef struct wf_event wf_event;
typedef struct wf_graph wf_graph;

/* The name of a block of device memory, by which other processes of the node can map it; its bytes are private to
 * the filling. */
typedef struct wf_share {
    unsigned char name[128];
} wf_share;

#define WF_DEVICE_IDENTITY 64

/* Argument structs of slots with many arguments. A caller sets the fields that the slot takes; all others are 0. The
 * description of a slot says which arrays it reads and which it writes. A slot does not keep the struct. */

/* x is the array of the input's shape, y of the output's, w and bias those of the parameters: values or gradients, as
 * the direction says. */
typedef struct wf_conv_args {
    const wf_conv_geom *geom;
    const wf_array *x, *y;       /* [N,C,...] and [N,F,...] */
    const wf_array *w;           /* [F,C/g,k...] */
    const wf_array *bias;        /* [F]; conv_backward_data: [C]; NULL: none */
    const wf_epilogue *epilogue; /* NULL: none; conv_backward_filter has none */
    bool accumulate;             /* conv_backward_filter alone */
    bool w_reused;               /* conv_forward alone: of w, as b_reused of wf_matmul_args */
} wf_conv_args;

/* All row-major, of rank 2. */
typedef struct wf_matmul_args {
    const wf_array *a, *b;
    const wf_array *bias; /* [n]; NULL: none */
    const wf_array *c;
    bool a_transposed, b_transposed, accumulate;
    bool b_reused; /* b keeps its value for more products, so a packed copy pays. It may change the order of sums, and
                      so the last bits, in the same way whether b has forms or not */
} wf_matmul_args;

/* x is the array of the input's shape, y of the output's: values, or, in pool_backward, gradients. */
typedef struct wf_pool_args {
    const wf_pool_geom *geom;
    const wf_array *x, *y;
    const wf_array *index; /* max alone; NULL: none */
    bool accumulate;       /* pool_backward alone */
} wf_pool_args;

typedef struct wf_resample_args {
    const wf_resample_geom *geom;
    const wf_array *x, *y; /* values, or, in resample_backward, gradients */
    bool accumulate;       /* resample_backward alone */
} wf_resample_args;

/* Sums along dimension 1 of row-major arrays [outer, length, inner] of one float type. Row r of the tables belongs to
 * output r of a whole; y starts at its output y_lo, and x at its input x_lo. */
typedef struct wf_taps_args {
    const wf_array *x, *y;
    const wf_array *start;  /* [rows] of i32: the first input of each output */
    const wf_array *weight; /* [rows, taps] of f32, or of f64 for f64 */
    int64_t x_lo, y_lo;
    bool accumulate;
} wf_taps_args;

/* Normalisation. Statistics are rank-1 arrays [K] of f32 (f64 for f64 x), one entry for each column. norm_stats,
 * norm_forward, norm_backward_stats and norm_backward read x [N,C] or [N,C,...] and have K = C: statistics over all
 * dimensions but 1. norm_part, norm_merge and norm_finish see no x: their K columns may mean anything. gamma and beta
 * are of x's type, or wide. */
typedef struct wf_norm_args {
    const wf_array *x, *y, *dy, *dx;
    const wf_array *residual, *g;               /* NULL: none; see norm_forward and norm_backward_stats */
    const wf_array *mean, *m2, *invstd;         /* average, sum of squared deviations from it, 1 / standard deviation */
    const wf_array *gamma, *beta;               /* NULL: 1 and 0 */
    const wf_array *sum_g, *sum_gx;             /* what norm_backward_stats gives norm_backward */
    const wf_array *running_mean, *running_var; /* NULL: not kept */
    const wf_epilogue *epilogue;                /* NULL: none */
    wf_count count; /* the global number of elements in each column; 0: see norm_finish and norm_backward */
    double eps, decay;
    bool y_of_x; /* backward: y came of x without residual and noise, so its sign may be found from x, gamma and beta */
} wf_norm_args;

/* Normalisation of groups, whatever the shape of x: in memory it is dense, [rows][places][channels]. Element (r, p, c)
 * belongs to group number r groups + (first + c) / size, one of rows * groups = K, and is scaled and shifted by entry c
 * of gamma and beta [channels], which are of x's type, or wide. Other processes may hold more elements of a group.
 * "Wide" is f32, and f64 where x is. */
typedef struct wf_group_norm_args {
    int64_t rows, places, channels;
    int64_t groups; /* of a row */
    int64_t size;   /* channels of a whole group */
    int64_t first;  /* place of channel 0 among the channels of all groups */
    double count;   /* elements of a whole group */
    double eps;
    bool about_zero; /* the mean counts as 0 and is not taken off (RMS normalisation) */
    const wf_array *x, *y, *dy, *dx;
    const wf_array *gamma, *beta;   /* NULL: 1 and 0 */
    const wf_array *stats;          /* wide [2,K]: mean, and 1 / standard deviation */
    const wf_array *sums;           /* f64 [3,K] or [2,K], as the slot says */
    const wf_array *dgamma, *dbeta; /* wide [channels]; NULL: not wanted */
} wf_group_norm_args;

typedef struct wf_act_args {
    wf_act act;
    double slope;
    const wf_array *x, *y, *dy, *dx;
    bool accumulate; /* act_backward alone */
} wf_act_args;

typedef struct wf_binary_args {
    wf_binary op;
    double alpha, beta;
    const wf_array *a, *b, *y;
    bool accumulate;
} wf_binary_args;

/* Rows of a table by their numbers. table and y have one float type; in take_backward the table may be wide. */
typedef struct wf_take_args {
    const wf_array *table; /* [R,E]: its rows are numbers first to first + R of `whole` */
    const wf_array *index; /* n numbers, u8, i32 or i64, row-major */
    const wf_array *y;     /* n rows of E elements, of any row-major shape */
    int64_t first, whole;
    int64_t ignored; /* a number that names no row, which may be outside [0, whole); WF_NONE_IGNORED: none */
    bool accumulate; /* take_backward alone */
} wf_take_args;

/* The types of the slots; a filling declares its functions by them. */
typedef const char *wf_library_fn(void);
typedef bool wf_multiplies_fn(wf_dtype dtype);
typedef int wf_device_count_fn(void);
typedef wf_status wf_device_choose_fn(wf_ctx *ctx, int ordinal);
typedef wf_status wf_device_identity_fn(wf_ctx *ctx, char identity[WF_DEVICE_IDENTITY]);
typedef wf_status wf_device_of_fn(wf_ctx *ctx, const void *data, int *ordinal);
typedef wf_status wf_stream_new_fn(wf_ctx *ctx, wf_stream **stream);
typedef void wf_stream_free_fn(wf_ctx *ctx, wf_stream *stream);
typedef wf_status wf_stream_fn(wf_ctx *ctx, wf_stream *stream);
typedef wf_status wf_event_new_fn(wf_ctx *ctx, wf_event **event);
typedef void wf_event_free_fn(wf_ctx *ctx, wf_event *event);
typedef wf_status wf_event_stream_fn(wf_ctx *ctx, wf_event *event, wf_stream *stream);
typedef wf_status wf_event_done_fn(wf_ctx *ctx, wf_event *event, bool *done);
typedef wf_status wf_capture_begin_fn(wf_ctx *ctx);
typedef wf_status wf_capture_end_fn(wf_ctx *ctx, wf_graph **graph);
typedef wf_status wf_graph_launch_fn(wf_ctx *ctx, wf_graph *graph);
typedef void wf_graph_free_fn(wf_ctx *ctx, wf_graph *graph);
typedef wf_status wf_alloc_fn(wf_ctx *ctx, size_t bytes, void **data);
typedef void wf_release_fn(wf_ctx *ctx, void *data, size_t bytes);
typedef wf_status wf_transfer_fn(wf_ctx *ctx, void *to, const void *from, size_t bytes);
typedef wf_status wf_transfer_begin_fn(wf_ctx *ctx, void *to, const void *from, size_t bytes, wf_stream *stream);
typedef wf_status wf_share_fn(wf_ctx *ctx, void *data, size_t bytes, wf_share *share);
typedef wf_status wf_map_fn(wf_ctx *ctx, const wf_share *share, void **data);
typedef void wf_unmap_fn(wf_ctx *ctx, void *data);
typedef wf_status wf_copy_fn(wf_ctx *ctx, const wf_strided *src, const wf_strided *dst, bool accumulate);
typedef wf_status wf_fill_fn(wf_ctx *ctx, const wf_array *y, double value);
typedef wf_status wf_random_fn(wf_ctx *ctx, wf_distribution dist, const wf_random *random, double a, double b,
                               const wf_array *y);
typedef wf_status wf_conv_fn(wf_ctx *ctx, const wf_conv_args *args);
typedef wf_status wf_bias_backward_fn(wf_ctx *ctx, const wf_array *dy, const wf_array *db, bool accumulate);
typedef wf_status wf_matmul_fn(wf_ctx *ctx, const wf_matmul_args *args);
typedef wf_status wf_matmul_stack_fn(wf_ctx *ctx, const wf_matmul_stack_args *args);
typedef wf_status wf_pool_fn(wf_ctx *ctx, const wf_pool_args *args);
typedef wf_status wf_resample_fn(wf_ctx *ctx, const wf_resample_args *args);
typedef wf_status wf_taps_fn(wf_ctx *ctx, const wf_taps_args *args);
typedef wf_status wf_norm_fn(wf_ctx *ctx, const wf_norm_args *args);
typedef wf_status wf_norm_part_fn(wf_ctx *ctx, const wf_norm_head *head, const wf_array *mean, const wf_array *m2,
                                  const wf_array *part);
typedef wf_status wf_norm_merge_fn(wf_ctx *ctx, const wf_array *parts, const wf_array *mean, const wf_array *m2,
                                   const wf_array *count);
typedef wf_status wf_group_norm_fn(wf_ctx *ctx, const wf_group_norm_args *args);
typedef wf_status wf_group_norm_merge_fn(wf_ctx *ctx, const wf_array *parts, const wf_array *sums);
typedef wf_status wf_act_fn(wf_ctx *ctx, const wf_act_args *args);
typedef wf_status wf_binary_fn(wf_ctx *ctx, const wf_binary_args *args);
typedef wf_status wf_fold_fn(wf_ctx *ctx, const wf_fold_args *args);
typedef wf_status wf_dropout_fn(wf_ctx *ctx, double rate, const wf_random *random, const wf_array *x,
                                const wf_array *y);
typedef wf_status wf_epilogue_forward_fn(wf_ctx *ctx, const wf_epilogue *epilogue, const wf_array *x,
                                         const wf_array *y);
typedef wf_status wf_epilogue_backward_fn(wf_ctx *ctx, const wf_epilogue *epilogue, const wf_array *y,
                                          const wf_array *dy, const wf_array *dv);
typedef wf_status wf_sum_fn(wf_ctx *ctx, const wf_array *x, double scale, const wf_array *y);
typedef wf_status wf_sum_squares_fn(wf_ctx *ctx, const wf_array *x, const wf_array *out, bool accumulate);
typedef wf_status wf_softmax_forward_fn(wf_ctx *ctx, bool logarithm, const wf_array *x, const wf_array *y);
typedef wf_status wf_softmax_backward_fn(wf_ctx *ctx, bool logarithm, const wf_array *y, const wf_array *dy,
                                         const wf_array *dx);
typedef wf_status wf_attention_fn(wf_ctx *ctx, const wf_attention_args *args);
typedef wf_status wf_neighbourhood_fn(wf_ctx *ctx, const wf_neighbourhood_args *args);
typedef wf_status wf_gates_fn(wf_ctx *ctx, const wf_gates_args *args);
typedef wf_status wf_row_most_fn(wf_ctx *ctx, const wf_array *x, const wf_array *y, const wf_array *index);
typedef wf_status wf_row_most_backward_fn(wf_ctx *ctx, const wf_array *index, const wf_array *dy, const wf_array *dx);
typedef wf_status wf_places_fn(wf_ctx *ctx, const wf_places_args *args);
typedef wf_status wf_unpool_fn(wf_ctx *ctx, const wf_unpool_args *args);
typedef wf_status wf_pick_pixels_fn(wf_ctx *ctx, const wf_array *x, const wf_array *index, const wf_array *y);
typedef wf_status wf_take_fn(wf_ctx *ctx, const wf_take_args *args);
typedef wf_status wf_loss_fn(wf_ctx *ctx, const wf_loss_args *args);
/* The `ignored` label of nll and count_correct, and number of take, where there is none. */
#define WF_NONE_IGNORED INT64_MIN
WF_HOST_AND_DEVICE static inline bool wf_is_ignored(int64_t number, int64_t ignored)
{
    return number == ignored && ignored != WF_NONE_IGNORED;
}
typedef wf_status wf_nll_forward_fn(wf_ctx *ctx, const wf_array *logp, const wf_array *labels, int64_t ignored,
                                    double scale, const wf_array *loss);
typedef wf_status wf_nll_backward_fn(wf_ctx *ctx, const wf_array *labels, int64_t ignored, const wf_array *dloss,
                                     double scale, const wf_array *dx);
typedef wf_status wf_entropy_fn(wf_ctx *ctx, const wf_entropy_args *args);
typedef wf_status wf_count_correct_fn(wf_ctx *ctx, const wf_array *scores, const wf_array *labels, int64_t ignored,
                                      int64_t k, const wf_array *correct);
typedef wf_status wf_label_place_fn(wf_ctx *ctx, const wf_label_place_args *args);
typedef wf_status wf_count_labels_fn(wf_ctx *ctx, const wf_array *labels, int64_t ignored, const wf_array *count);
typedef wf_status wf_optim_update_fn(wf_ctx *ctx, wf_optim_kind kind, const wf_optim_hyper *hyper, wf_dtype dtype,
                                     int64_t segments, const wf_optim_segment *segment);
typedef wf_status wf_step_verdict_fn(wf_ctx *ctx, const void *trailer, wf_dtype dtype, double ranks,
                                     wf_optim_hyper *hyper);
typedef wf_status wf_loss_scale_fn(wf_ctx *ctx, const double *sum_squares, wf_loss_scaling *scaling,
                                   wf_optim_hyper *hyper);
typedef wf_status wf_clip_scale_fn(wf_ctx *ctx, const double *sum_squares, double max_norm, wf_optim_hyper *hyper);
typedef void wf_range_push_fn(wf_ctx *ctx, const char *name);
typedef void wf_range_pop_fn(wf_ctx *ctx);
typedef void wf_shutdown_fn(wf_ctx *ctx);

typedef struct wf_kernels {
    const char *name; /* "ref", "cpu", "cuda" */
    bool host;        /* device memory is host memory */
    /* The library that computes convolutions and products, its version, and the newest instructions that it takes, by
     * the name that its own variable (ONEDNN_MAX_CPU_ISA) has for them: "oneDNN 2.6.3, AVX2". NULL: not told. */
    wf_library_fn *library;
    /* Returns true if the device has instructions for products of this type; without them the type is slower than f32.
     * NULL: true for all. */
    wf_multiplies_fn *multiplies;

    /* Which device. count: how many this process can use, at least 1. choose (0 to count - 1) comes before the first
     * alloc; without it the device is number 0. identity: equal for two contexts, of any ranks, if, and only if, they
     * have one device. Every other slot makes sure by itself that it works on the chosen device. */
    wf_device_count_fn *device_count;
    wf_device_choose_fn *device_choose;
    wf_device_identity_fn *device_identity;
    /* The number of the device that has the memory at `data`. WF_ERR_ARGUMENT if kernels of the chosen device cannot
     * use that memory. */
    wf_device_of_fn *device_of;

    /* Streams and events. Work on one stream is done in order. All slots of the table put their work on the stream
     * in use, which is at first the context's own stream (named by NULL), and may return before the work is done.
     * to_host returns when the copy and all earlier work on the stream in use are done. to_device returns when the
     * host memory may be used again; later work on the stream is ordered after the copy. Work on different streams
     * is ordered by events alone. Where device memory is host memory, work is done when its call returns. Freeing
     * NULL is fine. */
    wf_stream_new_fn *stream_new;
    wf_stream_free_fn *stream_free;
    wf_stream_fn *stream_use;
    wf_stream_fn *stream_finish; /* returns when all work put on it is done */
    wf_event_new_fn *event_new;  /* counts as done until it is recorded */
    wf_event_free_fn *event_free;
    wf_event_stream_fn *event_record; /* all work put on the stream so far */
    wf_event_stream_fn *event_wait;   /* work put on the stream from now on waits */
    wf_event_done_fn *event_done;     /* does not wait */

    /* Capture: recording work as a graph and launching it repeatedly. Between begin and end, work that is put on the
     * context's stream, and on streams that wait for it by events, is recorded and not done. Its arguments are
     * recorded by value, so every launch uses the same memory. Before the end, the context's stream must wait, by
     * events, for all other streams of the capture. During a capture to_device, to_host, stream_finish and
     * event_done fail with WF_ERR_STATE; an event that was recorded during a capture serves event_wait inside that
     * capture alone, until it is recorded again. end with graph NULL abandons the capture; it ends the capture in
     * any case. launch puts a graph on the context's stream; a launched graph completes even if it is freed. All
     * four NULL: the device has no capture. */
    wf_capture_begin_fn *capture_begin;
    wf_capture_end_fn *capture_end;
    wf_graph_launch_fn *graph_launch;
    wf_graph_free_fn *graph_free;

    /* Page-locked host memory, and asynchronous copies from and to it, which are only put on a stream. The caller
     * must not touch the memory until an event that was recorded after the copy is done. */
    wf_alloc_fn *pinned_alloc;
    wf_release_fn *pinned_release;
    wf_transfer_begin_fn *to_device_begin, *to_host_begin;

    /* Maps blocks of `alloc` (whole blocks, not parts) into other processes of the node. WF_ERR_UNSUPPORTED where
     * the device cannot do that. A block must live until all processes that mapped it have unmapped it. */
    wf_share_fn *share;
    wf_map_fn *map;
    wf_unmap_fn *unmap;

    /* Memory. alloc never returns NULL with WF_OK; 64-byte aligned. */
    wf_alloc_fn *alloc;
    wf_release_fn *release;
    wf_transfer_fn *to_device, *to_host;

    /* dst = src (or dst += src), element by element of equal dims, converting types. Pack, unpack, cast, slice,
     * concat, transpose and changes of order all use this slot. A stride of 0 in src repeats (broadcast). */
    wf_copy_fn *copy;
    wf_fill_fn *fill;
    wf_random_fn *random; /* a, b: see wf_distribution */

    /* y[n,f,o] = sum x[n,c,i] w[f,c,k] (+ bias[f]), then the epilogue. */
    wf_conv_fn *conv_forward;
    /* x[n,c,i] = sum y[n,f,o] w[f,c,k] (+ bias[c]), then the epilogue, where x and y are gradients. With bias and
     * epilogue this is the forward of the transposed convolution, whose input is y, whose output is x, and whose filter
     * [C,F/g,k...] is the w of the convolution that it transposes. */
    wf_conv_fn *conv_backward_data;
    /* w[f,c,k] = sum y[n,f,o] x[n,c,i]; bias[f] = sum y[n,f,o] where bias is not NULL; w, bias and y are gradients. w
     * and bias are of x's type, or both wide. */
    wf_conv_fn *conv_backward_filter;
    /* db[c] = sum of dy over all dimensions but 1; or wide. */
    wf_bias_backward_fn *bias_backward;
    /* dv from y and dy, where y = act(v + noise): dv = dy * act'(sign of y). In place (dv == dy) allowed. */
    wf_epilogue_backward_fn *epilogue_backward;

    /* c[m,n] = op(a) op(b) (+ bias[n]); op transposes where asked. c has a's type, or is wide. */
    wf_matmul_fn *matmul;
    /* The products of a stack, c = op(a) op(b), of one type. Matrices of c that no product reaches become 0, or stay if
     * the result is accumulated: those of a stack whose summed dimensions are empty. */
    wf_matmul_stack_fn *matmul_stack;

    /* Pooling. `index` (i32, shape and order of y; max only) holds the place of the maximum inside the *input's*
     * spatial extent, row-major, first of equals; a window wholly in padding gives -infinity and index -1. NaN wins.
     * forward: y and index from x. backward: x from y and index. */
    wf_pool_fn *pool_forward, *pool_backward;
    /* y: the places in the whole image; -1 stays. */
    wf_places_fn *pool_places;
    /* index and taken from places. A place outside the larger image other than -1 is WF_ERR_ARGUMENT, as an index of
     * take_forward. */
    wf_unpool_fn *unpool_index;
    /* y[n,c,o] = x[n,c,index[n,c,o]], or 0 where the index is -1. */
    wf_pick_pixels_fn *pick_pixels;

    /* forward: y[o] = x[floor(o / scale)], or linear between the two elements around t = (o + 1/2) / scale - 1/2, or,
     * with aligned corners, t = o (in - 1) / (in scale - 1); beyond the ends the last element holds. backward: x from
     * y. */
    wf_resample_fn *resample_forward, *resample_backward;
    /* y[a, o, i] = sum_t weight[o, t] x[a, start[o] + t, i] over the taps that lie in x. */
    wf_taps_fn *taps;

    /* In the slots of normalisation every array that a slot names must be given, but for gamma, beta, residual, g,
     * epilogue and running arrays, and where it says otherwise. Arrays that a slot does not name are not read and may
     * be NULL. xhat is (x - mean) invstd. */

    /* mean and m2 from x; both 0 where there is no element. Where invstd is given, norm_finish follows in the same
     * call, with all that it reads: x has all elements of its columns. */
    wf_norm_fn *norm_stats;
    /* Statistics of an array whose parts are on several ranks. A part is an f64 array [n + 2 K]: the n numbers of a
     * head, mean, m2. norm_part makes one; norm_merge joins parts [P, n + 2 K], in order and in f64, into mean and
     * m2 of all their elements, and count (f64 scalar) is the number of elements in each column. Parts whose first
     * number, their count, is not above 0 are skipped. */
    wf_norm_part_fn *norm_part;
    wf_norm_merge_fn *norm_merge;
    /* invstd = 1 / sqrt(m2 / count + eps); where running arrays are given: running += (1 - decay) (batch - running),
     * with the unbiased variance m2 / (count - 1) (biased where count is 1). count 0 means that no rank has an element:
     * running arrays stay, and invstd is 0.
     * mean may be NULL where running_mean is. */
    wf_norm_fn *norm_finish;
    /* y = epilogue((x - mean) invstd gamma + beta + residual); the residual has x's shape, type and order. In place
     * (y == x) allowed. */
    wf_norm_fn *norm_forward;
    /* From x, mean, invstd and dy. With g = dy through the epilogue backwards (y NULL: no epilogue): sum_g[c] = sum g,
     * sum_gx[c] = sum g xhat, and g itself, which may be dy (in place). With y_of_x gamma and beta must be those of
     * forward here and in norm_backward. */
    wf_norm_fn *norm_backward_stats;
    /* dx = gamma invstd (g - sum_g / count - xhat sum_gx / count), g as above. count 0 means here that the statistics
     * did not come from the batch (running ones): dx = gamma invstd g; x, mean, sum_g and sum_gx may then be NULL, if
     * the host knows the count (count.device NULL). y NULL: no epilogue, as above. dx may be dy (in place), and
     * overlaps x not at all. */
    wf_norm_fn *norm_backward;

    /* Normalisation of groups. group_norm_stats: sums [3,K] from x: for each group the number of elements that are
     * here, their mean and the sum of their squared deviations from it (about_zero: 0, and the sum of squares); all 0
     * where there is none. */
    wf_group_norm_fn *group_norm_stats;
    /* Joins parts [P,3,K] of the same groups, in order and in f64, into sums [2,K]: mean, and squared deviations. */
    wf_group_norm_merge_fn *group_norm_merge;
    /* stats, and y = (x - mean) / sqrt(squares / count + eps) gamma + beta. sums [2,K]: mean and squared deviations of
     * whole groups; NULL: x has whole groups, and their statistics are made in the same pass. */
    wf_group_norm_fn *group_norm_forward;
    /* From x, dy, stats and gamma: sums [2,K], those of gamma dy and of gamma dy xhat over the elements that are here
     * (NULL: not wanted), and dgamma and dbeta, those of dy xhat and of dy over rows and places. */
    wf_group_norm_fn *group_norm_backward_stats;
    /* dx = (gamma dy - sums[0] / count - xhat sums[1] / count) / standard deviation, without sums[0] if about_zero.
     * sums: of whole groups; NULL: x has whole groups, and their sums, dgamma and dbeta are made in the same pass. dx
     * may be dy (in place). */
    wf_group_norm_fn *group_norm_backward;

    /* Elementwise. backward: dx from dy and from x or y; the other one, by wf_act_by_x, may be NULL. In place allowed
     * for both. */
    wf_act_fn *act_forward, *act_backward;
    /* b NULL: taken as absent (LINEAR gives alpha a). In place (y == a) allowed. */
    wf_binary_fn *binary;
    /* y = the sum over the folded dimensions of op(a, b, c): arithmetic with broadcasting, sums over any dimensions,
     * and the two in one pass. A sum over no element is 0. In place allowed where nothing is folded or repeated. */
    wf_fold_fn *fold;
    /* y = x (1/(1-rate)) where the uniform number is at or above rate, else 0. The same call with dy gives dx. */
    wf_dropout_fn *dropout;
    /* y = act(x + noise n): an epilogue alone. In place allowed. */
    wf_epilogue_forward_fn *epilogue_forward;

    /* y (scalar) = scale times the sum of all elements of x. */
    wf_sum_fn *sum;
    /* out (f64 scalar) = sum of squares of x, added to what it held if accumulate. */
    wf_sum_squares_fn *sum_squares;

    /* Over dimension 1 of [N,C] or channels-last [N,C,...]: rows of C contiguous elements. */
    wf_softmax_forward_fn *softmax_forward;
    wf_softmax_backward_fn *softmax_backward;
    /* The largest element of each row of x [R,n], n at least 1 where R is: its value, y [R] of x's type (NULL: not
     * wanted), and its place in the row, index [R] of i64. First of equals; NaN wins. backward: dx [R,n] is dy at that
     * place, else 0. */
    wf_row_most_fn *row_most;
    wf_row_most_backward_fn *row_most_backward;
    /* forward: row i of y is row index[i] - first of the table, and 0 where the table has no such row. backward: row r
     * of the table is the sum of the rows i of y whose index is first + r, in the order of i; table and y are
     * gradients. An index outside [0, whole) that is not `ignored` is WF_ERR_ARGUMENT, as a wrong label of nll is. */
    wf_take_fn *take_forward, *take_backward;

    /* forward: y = sum_j p v[j], p = exp(s - lse) after dropout, and lse. A query that sees no key has y = 0 and lse =
     * -infinity. No array of T S elements is made. */
    wf_attention_fn *attention_forward;
    /* dq, dk, dv and dbias from dy and from y and lse, which may be those of more keys than are here. Sums over samples
     * have a fixed order. */
    wf_attention_fn *attention_backward;
    /* Attention of pixels to those around: y and lse of all queries, which have all keys that they see; then dq, dk, dv
     * and dbias from dy, y and lse, of the queries and keys that are here. Sums have a fixed order, and memory is
     * linear in the pixels. */
    wf_neighbourhood_fn *neighbourhood_forward, *neighbourhood_backward;

    /* A step of a recurrent cell behind its two products. forward: gates, kept, h and y from input, recurrent, biases,
     * before and cell_before; where types are equal, gates may be input (in place). backward: dinput, drecurrent, dh
     * and dcell from gates, kept, cell_before (LSTM), before (GRU), dy, dh and dcell. The dh that it leaves goes to the
     * step before without passing the recurrent product: of a GRU z (dy + dh), of an LSTM 0. A sample that takes no
     * part has gates, dinput and drecurrent 0, h = before, kept = cell_before (GRU: 0). */
    wf_gates_fn *gates_forward, *gates_backward;

    /* forward: loss (of x's type) = scale * sum l(x, t); t is `target`, or `value`. backward: dx = dloss * scale *
     * dl/dx. Where loss and dloss are no scalars nothing is summed. */
    wf_loss_fn *loss_forward, *loss_backward;
    /* Negative log likelihood of log-probabilities [N,C] or channels-last [N,C,...]; labels are u8, i32 or i64 of shape
     * [N] or [N,...] row-major, one per row. A label outside [0, C) is WF_ERR_ARGUMENT that names label, row and C: of
     * the call, or, where the call returns before the work is done, of the next to_host, which is where a number is
     * asked for; the result is then of the other rows. A row whose label is `ignored`, which may be outside that
     * range, adds nothing to the loss and has the gradient 0 (WF_NONE_IGNORED: every row counts). */
    wf_nll_forward_fn *nll_forward;
    wf_nll_backward_fn *nll_backward;
    /* What log softmax and nll give for x and labels, in one pass each. backward: dx = dloss * scale * (softmax(x) -
     * one at the label), 0 in rows that do not count. With q = -log softmax(x), weights w and smoothing s the loss of a
     * row of the label y is (1 - s) w_y q_y + (s / C) sum_c w_c q_c. Where loss and dloss are no scalars nothing is
     * summed: they have a number for each row. */
    wf_entropy_fn *entropy_forward, *entropy_backward;
    /* correct (i64 scalar) = number of rows with the label at one of the k largest elements (first of equals; a NaN is
     * largest at the head of a row and nothing elsewhere); count (i64 scalar) = number of rows whose label is not
     * `ignored`. */
    wf_count_correct_fn *count_correct;
    wf_label_place_fn *label_place;
    wf_count_labels_fn *count_labels;

    /* One update of all segments: of p, or of `direction` in place of p (not TRUST), and of the states. */
    wf_optim_update_fn *optim_update;
    /* Decides by a trailer (WF_TRAILER numbers of f32 or f64, summed over so many ranks) about the update that follows.
     * hyper->skip becomes 1 if its sums are not those of all ranks, ranks changed their models, losses differ in kind
     * (of SHARDED, PARTS and LOCAL more than one is above 0), a gradient overflowed, or a bit of DRAWS is neither 0 nor
     * COMPARED; nothing else is written then. Otherwise hyper->grad_scale becomes 1 / WEIGHT, where LOCAL + PARTS and
     * WEIGHT are above 0, else 1. */
    wf_step_verdict_fn *step_verdict;
    /* Called after the backward of a scaled loss. Does nothing if hyper->skip is set. If sum_squares, over all
     * gradients, is not finite, some gradient is not: hyper->skip is set, and the scale is multiplied by `backoff`.
     * Otherwise hyper->grad_scale is divided by the scale, the scale is multiplied by `growth` after `interval` such
     * steps, and bias1 and bias2 are set for update number step - skipped. The scale stays within 2^-100 and 2^100. */
    wf_loss_scale_fn *loss_scale;
    /* hyper->grad_scale *= min(1, max_norm / (grad_scale * sqrt(sum_squares)))  (all in device memory). */
    wf_clip_scale_fn *clip_scale;

    /* Named ranges of host work in the time line of a profiler, for layers and collectives; ranges nest. NULL: no
     * profiler. */
    wf_range_push_fn *range_push;
    wf_range_pop_fn *range_pop;

    /* Frees what the filling keeps for this context (primitive caches). */
    wf_shutdown_fn *shutdown;
} wf_kernels;

/* The fillings. wf_kernels_cuda returns NULL and records why: WF_ERR_UNSUPPORTED where the build has no CUDA,
 * WF_ERR_STATE where the machine has no GPU that works. */
const wf_kernels *wf_kernels_ref(void);
const wf_kernels *wf_kernels_cpu(void);
const wf_kernels *wf_kernels_cuda(void);
/* Returns true if the machine has a GPU and a driver, even if the GPU cannot be used. */
bool wf_cuda_found(void);

/* The factor r by which RADAM scales the step of Adam (Liu et al. 2020), or 0 where the variance of that step is not
 * bounded yet: of the update t for which bias2 is 1 - beta2^t. */
double wf_radam_factor(double beta2, double bias2);

/* Which inputs output o of the whole reads along dimension d: (1 - weight) x[at[0]] + weight x[at[1]]. */
typedef struct wf_resample_tap {
    int64_t at[2];
    double weight;
} wf_resample_tap;
wf_resample_tap wf_resample_taps(const wf_resample_geom *geom, int d, int64_t o);

#endif
