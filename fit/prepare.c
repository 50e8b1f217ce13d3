/* A serial program's optimizer and data sets become those of all ranks, in one call. Programs call it, and wf_fit. It
 * runs no step. */
#include "comm/comm_author.h"
#include "core/status_author.h"
#include "fit/fit_impl.h"
#include "layers/parallelize.h"

#include <string.h>

/* Batches that a thread has ready: one in use by the step, one for the next. */
enum { AHEAD = 2 };

wf_status wf_fit_agree(wf_comm *comm, const char *function, int count, const wf_fit_number *mine)
{
    /* Compares with rank 0's numbers. Each rank finds its own difference; the agreement then makes it an error of
     * all. */
    int64_t first[WF_FIT_NUMBERS] = {0};
    wf_status status = WF_OK;
    for (int i = 0; i < count; i++)
        first[i] = mine[i].value;
    WF_TRY(wf_bcast_bytes(comm, first, sizeof first, 0));
    for (int i = 0; i < count && status == WF_OK; i++)
        if (mine[i].value != first[i])
            status = WF_RAISE(WF_ERR_ARGUMENT, "%s: %s is %lld on rank %s and %lld on rank %s: should be the same",
                              function, mine[i].name, (long long)first[i], WF_RANK(comm, 0), (long long)mine[i].value,
                              WF_RANK(comm, wf_comm_rank(comm)));
    return wf_agree_status(comm, status);
}

/* Ranks whose batches have other sizes would make parts of means over other numbers of samples. */
static wf_status agree_prepare(wf_comm *comm, const wf_prepare_opts *o)
{
    const wf_fit_number numbers[] = {
        {"batch", o->batch},           {"test_batch", o->test_batch},           {"in_order", o->in_order},
        {"each_reads", o->each_reads}, {"local_batchnorm", o->local_batchnorm},
    };
    return wf_fit_agree(comm, "wf_prepare", sizeof numbers / sizeof *numbers, numbers);
}

static wf_status check_prepare(const wf_prepare_opts *opts)
{
    if (!opts->optim)
        return wf_error_need("wf_prepare", "optim", __FILE__, __LINE__);
    if (!opts->train || !opts->test) /* NULL may be what a reader left that failed */
        WF_TRY(wf_error_pending());
    WF_CHECK(opts->batch >= 0 && opts->test_batch >= 0, WF_ERR_ARGUMENT,
             "wf_prepare: batches of %lld samples, and of %lld for the test: should be 1 or more, or 0 for the default",
             (long long)opts->batch, (long long)opts->test_batch);
    return WF_OK;
}

static wf_iter *batches_of(wf_comm *comm, wf_dataset *dataset, bool train, const wf_prepare_opts *opts)
{
    const int64_t batch = opts->batch ? opts->batch : 32;
    /* The order of a test does not matter, so it is not shuffled. */
    const wf_scatter_opts scatter = {.shuffle = train && !opts->in_order, .each_reads = opts->each_reads};
    wf_dataset *part = wf_scatter_dataset(comm, dataset, scatter);
    wf_batch_opts batches = {.size = train || !opts->test_batch ? batch : opts->test_batch, .collate = opts->collate};
    /* Only batches of training grow. */
    if (train)
        memcpy(batches.grows, opts->grows, sizeof batches.grows);
    return wf_prefetch(wf_batches(part, batches), (wf_prefetch_opts){.depth = AHEAD, .workers = opts->workers});
}

/* What was not reached is freed here, as what was is freed by those who took it. */
static wf_status prepare_parts(wf_comm *comm, wf_prepare_opts *opts, wf_prepared *prepared)
{
    WF_TRY(wf_agree_status(comm, check_prepare(opts)));
    WF_TRY(agree_prepare(comm, opts));
    /* Before the model is divided: statistics of all ranks replace each rank's own. */
    if (!opts->local_batchnorm)
        WF_TRY(wf_agree_status(comm, wf_to_sync_batchnorm(wf_optim_model(opts->optim), comm)));
    /* Rank 0, which reads the data sets, says whether there is one; others may give NULL. */
    bool given[2] = {opts->train, opts->test};
    WF_TRY(wf_bcast_bytes(comm, given, sizeof given, 0));
    /* wf_scatter_dataset takes the data set over, even if it fails; the option is then NULL, so that it is not freed
     * twice. */
    if (given[0]) {
        prepared->train = batches_of(comm, opts->train, true, opts);
        opts->train = NULL;
        WF_TRY(wf_check(prepared->train));
    }
    if (given[1]) {
        prepared->test = batches_of(comm, opts->test, false, opts);
        opts->test = NULL;
        WF_TRY(wf_check(prepared->test));
    }
    wf_dataset_free(opts->train); /* those of ranks that rank 0 does not ask */
    wf_dataset_free(opts->test);
    opts->train = opts->test = NULL;
    prepared->optim = wf_multi_node(comm, opts->optim, opts->multi_node);
    opts->optim = NULL;
    return wf_check(prepared->optim);
}

wf_status wf_prepare(wf_comm *comm, wf_prepare_opts opts, wf_prepared *prepared)
{
    wf_prepared made = {0};
    wf_status status = WF_OK;
    if (!comm || !prepared)
        status = wf_error_need(__func__, comm ? "prepared" : "comm", __FILE__, __LINE__);
    if (status == WF_OK)
        status = prepare_parts(comm, &opts, &made);
    if (status != WF_OK) {
        wf_optim_free(opts.optim);
        wf_dataset_free(opts.train);
        wf_dataset_free(opts.test);
        wf_prepared_free(&made);
    }
    if (prepared)
        *prepared = made;
    return status;
}

void wf_prepared_free(wf_prepared *prepared)
{
    if (!prepared)
        return;
    wf_iter_free(prepared->test);
    wf_iter_free(prepared->train);
    wf_optim_free(prepared->optim);
    *prepared = (wf_prepared){0};
}
