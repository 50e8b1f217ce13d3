/* The internals of a tensor, for code that calls kernels: layers, optimizers and comm. A tensor is a handle, one for
 * each owner; the storage is the memory, shared by all handles on it. A *step tensor* holds a result that no one needs
 * after the step: the reset of a tape reports those whose handles were not freed. Constructors return a handle that the
 * caller frees; NULL on failure. Local. */
#ifndef WF_CORE_TENSOR_AUTHOR_H
#define WF_CORE_TENSOR_AUTHOR_H

#include "core/context_author.h"
#include "core/tensor.h"

typedef struct wf_storage {
    wf_ctx *ctx;
    void *data;
    size_t bytes;
    int64_t references;          /* handles, and copies that follow (master); freed with the last */
    uint64_t version;            /* grows with every write that others must notice: wf_tensor_touch */
    wf_packed_form *forms;       /* packed copies, for parameters */
    struct wf_storage *master;   /* of a copy that follows another tensor: that tensor's storage, on which it holds a
                                    reference; otherwise NULL */
    uint64_t made;               /* of such a copy: the version of the master from which it was made */
    bool followed;               /* such a copy of this storage exists or existed */
    bool packable;               /* kernels may keep packed copies */
    bool step;                   /* lives for one step: the tape reports what is left of it */
    bool kept;                   /* wf_keep: may outlive the step */
    bool borrowed;               /* the program owns data: wf_tensor_wrap */
    void (*release)(void *user); /* called with `user` at the end of borrowed memory; or NULL */
    void *user;
    struct wf_storage *prev, *next; /* list of the context's step storages */
} wf_storage;

struct wf_tensor {
    wf_ctx *ctx;
    wf_storage *storage;
    void *data; /* storage->data plus an offset */
    wf_dtype dtype;
    wf_order order;
    bool dense;
    wf_shape shape;
    int64_t stride[WF_MAX_RANK];
    wf_layout layout;
};

/* As wf_tensor_new_ordered, but a step tensor. */
wf_tensor *wf_tensor_new_step(wf_ctx *ctx, wf_dtype dtype, wf_shape shape, wf_order order);
/* A step tensor of the shape, type, order and layout of `like`, uninitialised. NULL for NULL. */
wf_tensor *wf_tensor_new_like(const wf_tensor *like);
/* A view of the elements under another shape, in the same memory; the tensor must be dense, the count equal, and either
 * both shapes row-major or the order's memory sequence equal: the caller has checked. */
wf_tensor *wf_tensor_recast(const wf_tensor *tensor, wf_shape shape, wf_order order);
/* An alias if the tensor is dense in that order and of that type, else a copy, which is a step tensor. What is written
 * to the result may thus show in the tensor. */
wf_tensor *wf_tensor_dense(const wf_tensor *tensor, wf_dtype dtype, wf_order order);

/* The array of a dense tensor, as slots take it: valid as long as the tensor. NULL gives an array with data NULL and
 * rank 0. */
wf_array wf_tensor_array(const wf_tensor *tensor);
/* As wf_tensor_array, for a tensor that need not be dense; not for NULL. */
wf_strided wf_tensor_strided(const wf_tensor *tensor);

/* Notes that the contents changed: packed forms and saved copies become stale. */
void wf_tensor_touch(wf_tensor *tensor);
uint64_t wf_tensor_version(const wf_tensor *tensor);
/* A copy of a dense tensor in another type that follows it: *copy, NULL at first, is made, or made anew where the
 * master has changed since or this is another type. Its version is the master's, so that what saved it notices a change
 * of the master. Packed forms are kept for it. */
wf_status wf_tensor_follow(const wf_tensor *master, wf_dtype dtype, wf_tensor **copy) WF_NODISCARD;

/* Returns true if has(tensor, what) is true of any tensor of the context. */
bool wf_any_tensor(const wf_ctx *ctx, bool (*has)(const wf_tensor *tensor, const void *what), const void *what);

/* How many step storages of the context are alive and not kept. */
int64_t wf_step_storages(const wf_ctx *ctx);

#endif
