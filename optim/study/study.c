/* Opening and closing of a study: its groups of ranks, and a Python process on rank 0 of each. */
#include "optim/study/study_impl.h"

#include "core/config_author.h"
#include "core/log.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_TIMEOUT_MS 60000

/* By the last name's ending alone. */
static bool ends_in(const char *path, const char *const *endings)
{
    const char *point = strrchr(path, '.'), *slash = strrchr(path, '/');
    for (; point && (!slash || point > slash) && *endings; endings++)
        if (strcmp(point, *endings) == 0)
            return true;
    return false;
}

static wf_status check_option_values(const wf_study_opts *o)
{
    WF_CHECK(o->trials >= 0, WF_ERR_ARGUMENT, "a study of %lld trials", (long long)o->trials);
    /* Optuna's samplers take 32 bits. */
    WF_CHECK(o->seed >= 0 && o->seed < 1LL << 32, WF_ERR_ARGUMENT, "a study with seed %lld: should be below 2^32",
             (long long)o->seed);
    WF_CHECK(o->startup_trials >= 0 && o->warmup_steps >= 0 && o->timeout_ms >= 0, WF_ERR_ARGUMENT,
             "a study with %lld startup trials, %lld warmup steps and a timeout of %lld ms: should not be negative",
             (long long)o->startup_trials, (long long)o->warmup_steps, (long long)o->timeout_ms);
    WF_CHECK((int)o->sampler >= 0 && o->sampler <= WF_SAMPLER_QMC, WF_ERR_ARGUMENT, "there is no sampler %d",
             (int)o->sampler);
    WF_CHECK((int)o->pruner >= 0 && o->pruner <= WF_PRUNER_HYPERBAND, WF_ERR_ARGUMENT, "there is no pruner %d",
             (int)o->pruner);
    return WF_OK;
}

static wf_status check(const wf_comm *comm, const char *name, const wf_study_opts *o)
{
    static const char *const endings[] = {".db", ".sqlite", ".sqlite3", ".journal", ".log", NULL};
    WF_CHECK(name && *name, WF_ERR_ARGUMENT, "a study needs a name");
    WF_TRY(wf_study_check_text("the name of a study,", name));
    WF_TRY(wf_study_check_text("the storage of a study,", o->storage ? o->storage : ""));
    WF_CHECK(o->groups >= 1 && o->groups <= wf_comm_size(comm), WF_ERR_ARGUMENT,
             "study %s: %d groups of %d ranks: should be 1 to %d", name, o->groups, wf_comm_size(comm),
             wf_comm_size(comm));
    /* Groups find each other's trials only in a file. */
    WF_CHECK(o->storage || o->groups == 1, WF_ERR_ARGUMENT,
             "study %s: %d groups need a file that they share as .storage", name, o->groups);
    WF_CHECK(!o->storage || ends_in(o->storage, endings), WF_ERR_ARGUMENT,
             "study %s: storage %s: should end in .db, .sqlite or .sqlite3 (SQLite), or in .journal or .log", name,
             o->storage);
    return check_option_values(o);
}

/* --- The same on all ranks -----------------------------------------------------------------------------------------
 */

#define SHOWN 160 /* of a text, in an error */

/* What a rank opens. Fixed in size, so that it travels as one message. */
typedef struct opening {
    int64_t number[9];
    uint64_t hash[2]; /* of the texts, which may be longer */
    char text[2][SHOWN];
} opening;

static opening opening_of(const char *name, const wf_study_opts *o)
{
    opening mine;
    const char *const text[2] = {name ? name : "", o->storage ? o->storage : "memory"};
    /* Compared and sent as bytes, so padding counts. */
    memset(&mine, 0, sizeof mine);
    const int64_t number[9] = {o->trials,         o->groups,      o->maximize,     (int)o->sampler, o->seed,
                               o->startup_trials, (int)o->pruner, o->warmup_steps, o->timeout_ms};
    memcpy(mine.number, number, sizeof number);
    for (int i = 0; i < 2; i++) {
        mine.hash[i] = wf_study_hash(text[i]);
        snprintf(mine.text[i], SHOWN, "%s", text[i]);
    }
    return mine;
}

static wf_status compare_with(const wf_comm *comm, const opening *first, const opening *mine)
{
    static const char *const numbers[] = {"trials",         "groups", "maximize",     "sampler",   "seed",
                                          "startup_trials", "pruner", "warmup_steps", "timeout_ms"};
    static const char *const texts[] = {"the name", "storage"};
    /* The lowest rank that differs is named, by wf_agree_status. */
    const char *leader = WF_RANK(comm, 0), *rank = WF_RANK(comm, wf_comm_rank(comm));
    for (int i = 0; i < 2; i++)
        WF_CHECK(first->hash[i] == mine->hash[i], WF_ERR_ARGUMENT,
                 "rank %s opens a study with %s \"%s\" and rank %s with %s \"%s\"; all ranks give the same options",
                 leader, texts[i], first->text[i], rank, texts[i], mine->text[i]);
    for (int i = 0; i < 9; i++)
        WF_CHECK(first->number[i] == mine->number[i], WF_ERR_ARGUMENT,
                 "rank %s opens a study with %s %lld and rank %s with %s %lld; all ranks give the same options", leader,
                 numbers[i], (long long)first->number[i], rank, numbers[i], (long long)mine->number[i]);
    return WF_OK;
}

/* Before anything is split or started: with other options ranks would wait in different collectives. */
static wf_status compare_options(wf_comm *comm, const char *name, const wf_study_opts *o)
{
    const opening mine = opening_of(name, o);
    opening first = mine;
    WF_TRY(wf_bcast_bytes(comm, &first, sizeof first, 0));
    return wf_agree_status(comm, compare_with(comm, &first, &mine));
}

/* --- Python --------------------------------------------------------------------------------------------------------
 */

static char *opening_line(const wf_study *study)
{
    static const char *const samplers[] = {"tpe", "random", "cmaes", "qmc"}, *const pruners[] = {"median", "none",
                                                                                                 "halving",
                                                                                                 "hyperband"};
    const wf_study_opts *o = &study->opts;
    wf_line line;
    wf_line_begin(&line, "open");
    wf_line_add(&line, study->name);
    wf_line_add(&line, o->storage ? o->storage : "");
    wf_line_add_int(&line, o->maximize);
    wf_line_add(&line, samplers[o->sampler]);
    wf_line_add_int(&line, o->seed);
    wf_line_add_int(&line, o->startup_trials);
    wf_line_add(&line, pruners[o->pruner]);
    wf_line_add_int(&line, o->warmup_steps);
    wf_line_add_int(&line, o->trials);
    wf_line_add_int(&line, study->index);
    wf_line_add_int(&line, o->groups);
    /* For the processes of a job that has just been killed to end. A lock that a killed process has left is waited for
     * a quarter of the time, so that the answer still comes in time. */
    wf_line_add_real(&line, (double)o->timeout_ms / 4e3);
    return wf_line_end(&line);
}

static wf_status try_python(wf_study *study, const char *python)
{
    const char *said;
    wf_words answer = {0};
    char *line = opening_line(study);
    wf_status status = line ? wf_bridge_start(&study->bridge, python, study->name) : WF_ERR_MEMORY;
    if (status == WF_OK)
        status = wf_bridge_exchange(&study->bridge, line, study->opts.timeout_ms, &said);
    free(line);
    if (status == WF_OK)
        status = wf_words_parse(&answer, said);
    if (status == WF_OK)
        status = wf_study_answer(&answer);
    if (status == WF_OK && answer.count == 2)
        wf_log_write(WF_LOG_DEBUG, "study %s: %s with Optuna %s", study->name, python, answer.word[1]);
    wf_words_free(&answer);
    if (status != WF_OK)
        wf_bridge_end(&study->bridge);
    return status;
}

static wf_status start_python(wf_study *study)
{
    /* A Python that the user names is the only one that is tried. */
    const char *const own = wf_config_get()->python;
    const char *const candidates[] = {own ? own : "python3", own ? NULL : "/usr/bin/python3", NULL};
    char why[1024] = "";
    for (int i = 0; candidates[i]; i++) {
        const wf_status status = try_python(study, candidates[i]);
        /* Python, or Optuna, is missing or broken there; everything else would be the same with another one. */
        if (status != WF_ERR_UNSUPPORTED)
            return status;
        const size_t used = strlen(why);
        snprintf(why + used, sizeof why - used, "%s%.400s", i ? "; " : "", wf_error_message());
    }
    WF_FAIL(WF_ERR_UNSUPPORTED,
            "a study needs Python with Optuna (Debian: apt-get install python3-optuna; else: pip install optuna, and "
            "WEFT_PYTHON names that Python): %s",
            why);
}

/* --- Groups --------------------------------------------------------------------------------------------------------
 */

/* Group 0 comes first: it makes the study in the storage, and no other group works in it while it repeats killed
 * trials. All ranks come here, whether they start a process or not. */
static wf_status connect_group(wf_study *study)
{
    const bool leads = wf_comm_rank(study->group) == 0;
    wf_status status = leads && study->index == 0 ? start_python(study) : WF_OK;
    WF_TRY(wf_bcast_status(study->all, status, 0));
    status = leads && study->index > 0 ? start_python(study) : WF_OK;
    return wf_agree_status(study->all, status);
}

static wf_status split_ranks(wf_study *study, wf_comm *comm)
{
    const int rank = wf_comm_rank(comm), size = wf_comm_size(comm);
    /* A communicator of its own, so that a failure of the study is not one of the program's. */
    study->all = wf_comm_split(comm, 0, rank);
    WF_TRY(wf_check(study->all));
    /* Neighbouring ranks form a group, and groups differ by one rank at most. */
    study->index = (int)((int64_t)rank * study->opts.groups / size);
    study->group = wf_comm_split(study->all, study->index, rank);
    return wf_check(study->group);
}

static wf_study *study_new(const char *name, wf_study_opts opts)
{
    wf_study *study = calloc(1, sizeof *study);
    char *own = strdup(name), *storage = opts.storage ? strdup(opts.storage) : NULL;
    if (!study || !own || (opts.storage && !storage)) {
        free(study);
        free(own);
        free(storage);
        return NULL;
    }
    *study = (wf_study){.name = own, .opts = opts};
    study->opts.storage = storage;
    return study;
}

wf_study *wf_study_open(wf_comm *comm, const char *name, wf_study_opts opts)
{
    WF_NEED_NULL(comm);
    opts.groups = opts.groups ? opts.groups : 1;
    WF_TRY_NULL(compare_options(comm, name, &opts));
    /* Checks are made after options were compared: equal options give equal errors. */
    WF_TRY_NULL(wf_agree_status(comm, check(comm, name, &opts)));
    /* Python must answer before the ranks' own time-out. */
    const int64_t most = wf_config_get()->timeout_ms, wanted = opts.timeout_ms ? opts.timeout_ms : DEFAULT_TIMEOUT_MS;
    opts.timeout_ms = wanted < most ? wanted : most;
    wf_study *study = study_new(name, opts);
    wf_status status = wf_agree_status(comm, study ? WF_OK : WF_RAISE(WF_ERR_MEMORY, "no memory for a study"));
    if (status == WF_OK)
        status = split_ranks(study, comm);
    if (status == WF_OK)
        status = connect_group(study);
    if (status == WF_OK)
        return study;
    wf_study_close(study);
    return wf_error_null();
}

/* Without the other ranks, who may not come: what rank 0 knows suffices. Without it the trial would count as running in
 * the storage. */
static void give_up_trial(wf_study *study)
{
    const char *said;
    wf_line line;
    wf_line_begin(&line, "tell");
    wf_line_add(&line, "failed");
    wf_line_add(&line, "the study was closed");
    wf_line_add(&line, "nan");
    char *text = wf_line_end(&line);
    if (!text || wf_bridge_exchange(&study->bridge, text, study->opts.timeout_ms, &said) != WF_OK)
        wf_log_write(WF_LOG_WARN, "study %s: trial %lld could not be told as failed: %s", study->name,
                     (long long)study->trial.number, wf_error_message());
    free(text);
}

/* Local: it may be called after a failure, when collectives are of no use. Communicators are closed from the inside
 * out. */
void wf_study_close(wf_study *study)
{
    if (!study)
        return;
    if (study->trial.open && study->bridge.child > 0)
        give_up_trial(study);
    wf_bridge_end(&study->bridge);
    (void)wf_comm_close(study->work);
    (void)wf_comm_close(study->group);
    (void)wf_comm_close(study->all);
    wf_study_table_free(study);
    free(study->name);
    free((void *)study->opts.storage);
    free(study);
}

int wf_study_group(const wf_study *study)
{
    return study ? study->index : 0;
}
