/* cuDNN and cuBLASLt as the cuda filling uses them: handles, and plans kept by everything that shapes them.
 *
 * A plan is slow to make and fast to run. All plans of a step are made in the first steps; from then on a slot looks
 * its plan up and puts it on the stream.
 */
#ifndef WF_CORE_CUDA_DNN_IMPL_H
#define WF_CORE_CUDA_DNN_IMPL_H

#include "core/cuda/cuda_impl.h"
#include "core/cuda/plan_author.h"

#include <cublasLt.h>
#include <cudnn_graph.h>

/* The arrays of a convolution, named as in the forward direction: x, y may be gradients, and so may w. */
typedef enum cuda_role { CUDA_X = 0, CUDA_W, CUDA_Y, CUDA_B, CUDA_ROLES } cuda_role;

/* Zero it as a whole before filling it: it is compared as bytes. */
typedef struct cuda_conv_key {
    int32_t direction, dtype, nd; /* nd: 2 or 3 */
    int32_t act;                  /* fused after the bias; WF_ACT_NONE: nothing */
    int32_t align[CUDA_ROLES];    /* bytes, at most 16; 0 for the bias: there is none to fuse */
    float slope;
    int32_t wide; /* the result is f32, the others of dtype */
    int64_t n, c, f, groups;
    int64_t in[WF_MAX_SPATIAL], out[WF_MAX_SPATIAL], kernel[WF_MAX_SPATIAL], stride[WF_MAX_SPATIAL];
    int64_t dilation[WF_MAX_SPATIAL], lo[WF_MAX_SPATIAL], hi[WF_MAX_SPATIAL];
} cuda_conv_key;

enum { CUDA_ITEMS = 24, CUDA_CANDIDATES = 24, CUDA_MODES = 3, CUDA_PACKS = 4 };

/* Descriptors that live and die together. */
typedef struct cuda_items {
    cudnnBackendDescriptor_t item[CUDA_ITEMS];
    int count;
} cuda_items;

/* cuDNN's list of the arrays of a call. */
typedef struct cuda_pack {
    cudnnBackendDescriptor_t pack; /* NULL: none */
    void *data[CUDA_ROLES], *workspace;
} cuda_pack;

typedef struct cuda_conv_plan {
    struct cuda_conv_plan *next;
    cuda_conv_key key;
    cudnnBackendDescriptor_t plan; /* NULL: no engine takes it */
    cuda_items items;              /* the plan and the configuration of its engine */
    /* Lists of the latest calls: a plan runs with the same arrays in every step, once for each layer of its shape. */
    cuda_pack pack[CUDA_PACKS];
    int next_pack;
    size_t workspace;
    int candidate; /* its place among those that the heuristics name */
    bool compiled; /* its engine was compiled for it */
    bool ran;
    bool captured; /* a captured step replays what it launched: it stays */
    uint64_t used; /* when it was last found */
} cuda_conv_plan;

typedef struct cuda_product cuda_product;

enum { CUDA_BUCKETS = 256 };

struct wf_cuda_dnn {
    cudnnHandle_t cudnn;
    cudaStream_t stream; /* that cudnn was told last; NULL: none */
    cublasLtHandle_t blas;
    cuda_conv_plan *convolution[CUDA_BUCKETS];
    cuda_product *product[CUDA_BUCKETS];
    int64_t convolutions, products; /* how many are kept */
    uint64_t uses;                  /* so far */
    bool told;                      /* that convolutions are computed without an engine */
};

/* own->dnn, made if need be. */
wf_status wf_cuda_dnn_here(wf_cuda *own, wf_cuda_dnn **dnn);

wf_status wf_cuda_dnn_error(cudnnStatus_t status, const char *call, const char *file, int line);
#define TRY_DNN(call)                                                                                                  \
    do {                                                                                                               \
        const cudnnStatus_t try_dnn_ = (call);                                                                         \
        if (try_dnn_ != CUDNN_STATUS_SUCCESS)                                                                          \
            return wf_cuda_dnn_error(try_dnn_, #call, __FILE__, __LINE__);                                             \
    } while (0)

wf_status wf_cuda_blas_error(cublasStatus_t status, const char *call, const char *file, int line);
#define TRY_BLAS(call)                                                                                                 \
    do {                                                                                                               \
        const cublasStatus_t try_blas_ = (call);                                                                       \
        if (try_blas_ != CUBLAS_STATUS_SUCCESS)                                                                        \
            return wf_cuda_blas_error(try_blas_, #call, __FILE__, __LINE__);                                           \
    } while (0)

/* core/cuda/dnn_graph.c: the graph of a key, and the engines for it in the order in which the heuristics prefer them.
 */
typedef struct cuda_search {
    cudnnHandle_t handle;
    const cuda_conv_key *key;
    cuda_items items;
    cudnnBackendDescriptor_t graph; /* NULL: cuDNN refuses it */
    cudnnBackendDescriptor_t config[CUDA_CANDIDATES];
    int mode, count, at; /* modes asked so far; configurations of the last one, and how many of them are used up */
    int from, found;     /* candidates before `from` are left out; found so far */
} cuda_search;

void wf_cuda_search_open(cudnnHandle_t handle, const cuda_conv_key *key, cuda_search *search);
/* A plan of the next candidate whose precision is allowed and which accepts the graph; false where there is none.
 * compiled_left 0 leaves out engines that are compiled when their plan is made, which takes seconds. */
bool wf_cuda_search_next(cuda_search *search, int compiled_left, cuda_conv_plan *plan);
/* plan: what was chosen, for the log. */
void wf_cuda_search_close(cuda_search *search, const cuda_conv_plan *plan);
/* The first candidate at or after `from`; plan->plan stays NULL where there is none. A key that may as well be computed
 * in two passes (wf_cuda_key_composed) takes no engine that is compiled for it. */
void wf_cuda_plan_build(cudnnHandle_t handle, int from, cuda_conv_plan *plan);
void wf_cuda_plan_drop(cuda_conv_plan *plan);
/* data by role. The workspace holds plan->workspace bytes. */
cudnnStatus_t wf_cuda_plan_put(cudnnHandle_t handle, cuda_conv_plan *plan, void *const data[CUDA_ROLES],
                               void *workspace);

/* Returns true if the graph of a key has more than a convolution: a bias, an activation, a result of another type. */
bool wf_cuda_key_composed(const cuda_conv_key *key);

/* What cuDNN runs from now on goes to the stream in use. */
wf_status wf_cuda_dnn_stream(wf_cuda *own);

/* core/cuda/dnn_plan.c: wf_cuda_plan_build, whose time counts as planning. */
void wf_cuda_plan_build_timed(wf_cuda *own, int from, cuda_conv_plan *plan);
/* The plan of a key, made at its first use; NULL where no engine takes it. Of many keys the WF_PLANS_MOST that were
 * used last are kept; *plan stands until the next call. */
wf_status wf_cuda_plan_find(wf_cuda *own, const cuda_conv_key *key, cuda_conv_plan **plan);
/* As wf_cuda_plan_put, on the stream in use. Where the engine fails in its first run, the next one takes its place:
 * *done is false then, and the plan is to be looked up again. */
wf_status wf_cuda_plan_run(wf_cuda *own, cuda_conv_plan *plan, void *const data[CUDA_ROLES], void *workspace,
                           bool *done);
/* The array that a key computes; its arrays' types; their bytes. */
cuda_role wf_cuda_key_result(const cuda_conv_key *key);
wf_dtype wf_cuda_key_dtype(const cuda_conv_key *key, cuda_role role);
size_t wf_cuda_key_bytes(const cuda_conv_key *key, cuda_role role);

/* core/cuda/dnn_tune.c: the fastest of the candidates, by running each of them; of a composed key none where two passes
 * are as fast. Waits for the device, and its time counts as tuning. In a step that is captured nothing is measured: the
 * first candidate is taken. */
wf_status wf_cuda_plan_tune(wf_cuda *own, cuda_conv_plan *plan);
/* Its milliseconds; -1 where no engine takes the key. */
wf_status wf_cuda_plan_best(wf_cuda *own, const cuda_conv_key *key, double *ms);

/* core/cuda/matmul.c */
void wf_cuda_products_free(wf_cuda *own);

/* FNV-like hash of whole words. */
uint64_t wf_cuda_hash(const void *key, size_t bytes);
/* The largest power of two up to 16 that divides the address. */
int32_t wf_cuda_alignment(const void *data);

#endif
