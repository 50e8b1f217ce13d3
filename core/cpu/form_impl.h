/* Filters in the form that an algorithm wants, kept beside the array where it lets one. */
#ifndef WF_CORE_CPU_FORM_IMPL_H
#define WF_CORE_CPU_FORM_IMPL_H

#include "core/cpu/cpu_impl.h"

typedef struct wf_filter_form {
    void *data;
    void *temporary; /* of the pool, where the array keeps no forms */
    size_t bytes;
} wf_filter_form;

/* Makes the form of `w` at `form`; `how` says which. */
typedef wf_status (*wf_filter_form_maker)(wf_ctx *ctx, const void *how, const wf_array *w, void *form);

/* The form of w under this key, made anew if w has changed since. Give it back with wf_filter_form_give. */
wf_status wf_filter_form_take(wf_ctx *ctx, const wf_array *w, uint64_t key, size_t bytes, wf_filter_form_maker make,
                              const void *how, wf_filter_form *form);
void wf_filter_form_give(wf_ctx *ctx, wf_filter_form *form);

#endif
