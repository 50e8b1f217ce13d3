/* Filters in the form that a kernel reads: packed once for each version of a parameter and kept beside it
 * (wf_array.forms), or packed for one call where the filter is no parameter. Called by the convolutions and products of
 * this folder.
 */
#include "core/cpu/cpu_impl.h"

/* Forms of one filter that are kept. A loop of fixed shape has two or three; images of many sizes have one more for
 * each layout that oneDNN likes best for a size. */
enum { FORMS_MOST = 8 };

static wf_status kept_new(wf_ctx *ctx, const wf_array *w, uint64_t key, size_t bytes, wf_packed_form **kept)
{
    wf_packed_form *form = wf_calloc(ctx, 1, sizeof *form);
    *kept = form;
    if (!form)
        return wf_error_take("packed filter", __FILE__, __LINE__);
    *form = (wf_packed_form){.next = *w->forms, .key = key, .bytes = bytes, .version = w->version + 1};
    *w->forms = form;
    return WF_OK;
}

/* The first form of the list was used last: frees those behind the first FORMS_MOST. */
static void drop_oldest_form(wf_ctx *ctx, wf_packed_form **forms)
{
    for (int i = 0; *forms && i < FORMS_MOST; i++)
        forms = &(*forms)->next;
    wf_packed_free(ctx, forms);
}

/* The form of this key as the first of the list, which is in the order of use. */
static wf_status kept_find(wf_ctx *ctx, const wf_array *w, uint64_t key, size_t bytes, wf_packed_form **kept)
{
    wf_packed_form **at = w->forms;
    while (*at && ((*at)->key != key || (*at)->bytes != bytes))
        at = &(*at)->next;
    *kept = *at;
    if (!*kept) {
        WF_TRY(kept_new(ctx, w, key, bytes, kept));
        drop_oldest_form(ctx, w->forms);
        return WF_OK;
    }
    *at = (*kept)->next;
    (*kept)->next = *w->forms;
    *w->forms = *kept;
    return WF_OK;
}

static wf_status kept_take(wf_ctx *ctx, const wf_array *w, uint64_t key, size_t bytes, wf_filter_form_maker make,
                           const void *how, void **data)
{
    wf_packed_form *kept = NULL;
    WF_TRY(kept_find(ctx, w, key, bytes, &kept));
    if (!kept->data)
        WF_TRY(wf_pool_take(ctx, bytes, &kept->data));
    if (kept->version != w->version) {
        WF_TRY(make(ctx, how, w, kept->data));
        kept->version = w->version;
    }
    *data = kept->data;
    return WF_OK;
}

wf_status wf_filter_form_take(wf_ctx *ctx, const wf_array *w, uint64_t key, size_t bytes, wf_filter_form_maker make,
                              const void *how, wf_filter_form *form)
{
    *form = (wf_filter_form){.bytes = bytes};
    if (w->forms)
        return kept_take(ctx, w, key, bytes, make, how, &form->data);
    WF_TRY(wf_pool_take(ctx, bytes, &form->temporary));
    form->data = form->temporary;
    const wf_status status = make(ctx, how, w, form->data);
    if (status != WF_OK)
        wf_filter_form_give(ctx, form);
    return status;
}

void wf_filter_form_give(wf_ctx *ctx, wf_filter_form *form)
{
    wf_pool_give(ctx, form->temporary, form->bytes);
    form->temporary = NULL;
}
