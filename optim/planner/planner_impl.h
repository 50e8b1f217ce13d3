/* The planner's own parts. */
#ifndef WF_OPTIM_PLANNER_IMPL_H
#define WF_OPTIM_PLANNER_IMPL_H

#include "core/profile_author.h"
#include "layers/pipeline_author.h"
#include "optim/multi_node_impl.h"
#include "optim/planner_author.h"

/* Elements of a sum that is measured and priced: a full bucket of gradients. */
#define WF_PLANNER_SUM (WF_BUCKET_BYTES / 4)

/* Seconds of the clock that profiles use. */
static inline double wf_planner_now(void)
{
    return 1e-9 * (double)wf_profile_clock();
}

/* A path is inside of another one that is equal, or that it continues behind a '/'. */
bool wf_planner_inside(const char *path, const char *of);
wf_layer *wf_planner_find(wf_layer *model, const char *path); /* NULL: there is none */

/* What each byte of gradients that are summed over some ranks costs a rank. sum_s: the schedule that sums them on every
 * rank. If the optimizer state is sharded, shards_s: summing each shard on its rank, during backward; gather_s: the
 * all-gather of the values after the update. */
typedef struct wf_sum_cost {
    double sum_s, shards_s, gather_s;
    double bytes, sharded_bytes; /* sent: by the first; by the other two */
} wf_sum_cost;

/* A mesh that is looked at, and what a step of one rank's samples costs where nothing else is split. */
typedef struct wf_place {
    const wf_planner_model *m;
    const wf_planner_meter *meter;
    int ranks, nodes;
    wf_mesh_opts mesh; /* every axis at least 1 */
    int pixels, channels;
    int64_t batch; /* of a place along data */
    wf_planner_times times;
    wf_planner_overlap overlap;
    wf_sum_cost sum[2]; /* over data; over data and pixels, where there are several */
} wf_place;

/* What a unit costs in one form. */
typedef struct wf_unit_cost {
    bool possible;
    int form, state; /* how it is split, and its output, of wf_parallel */
    double forward_s, backward_s, message_s, bytes, kept, output;
    double backward;             /* bytes: where backward of a leaf needs most, with what the leaves before it keep */
    double again_s, again_bytes; /* of message_s and bytes: of forward, which recomputing sends once more */
    double params[2];            /* elements on a rank: of gradients that are summed over data; over data and pixels */
} wf_unit_cost;

/* Measures what all units of the mesh need. */
wf_status wf_place_open(const wf_planner_model *m, const wf_planner_meter *meter, const wf_planner_opts *opts,
                        wf_mesh_opts mesh, int64_t batch, wf_place *place) WF_NODISCARD;
void wf_place_close(wf_place *place);
/* A unit whose input is split as `state` says. */
wf_status wf_place_cost(const wf_place *place, const wf_planner_unit *unit, unsigned form, int state,
                        wf_unit_cost *cost) WF_NODISCARD;
/* Sums over ranks of which each is `stride` ranks behind the one before, from the prices of those of a full bucket. */
wf_status wf_place_sum(const wf_place *place, int members, int stride, wf_sum_cost *cost) WF_NODISCARD;
bool wf_place_between(const wf_place *place, int span);

/* --- attention.c: attention over an image, or tokens, that ranks share */
typedef struct wf_attention_cost {
    double share;                       /* of the work, on the rank that has most of it */
    double forward, backward, messages; /* bytes and messages that a rank sends on average; messages: of one exchange */
} wf_attention_cost;
bool wf_planner_attends(const wf_planner_leaf *leaf);
wf_attention_cost wf_planner_attention_of(const wf_place *place, const wf_planner_leaf *leaf);

/* --- json.c: a reader of JSON, as much of it as plan files have ------------------------------------------------------
 */
typedef struct wf_json_value {
    char kind;              /* '{' '[' '"' '0' 't' 'f' */
    const char *key, *text; /* key: in an object; text: of a string */
    double number;
    int next, child; /* by number; -1: none */
} wf_json_value;
typedef struct wf_json {
    wf_ctx *ctx;
    const char *name; /* for errors */
    char *text;       /* its own copy, in which strings end */
    char *at;
    wf_json_value *value;
    int values, room;
} wf_json;
/* Value 0 is the whole. WF_ERR_FORMAT names the line. */
wf_status wf_json_read(wf_ctx *ctx, const char *text, const char *name, wf_json *json) WF_NODISCARD;
void wf_json_clear(wf_json *json);
/* Finds the value of this key and kind in an object. WF_ERR_FORMAT if there is none. */
wf_status wf_json_get(const wf_json *json, int object, const char *key, char kind, int *value) WF_NODISCARD;
wf_status wf_json_number(const wf_json *json, int object, const char *key, double least, double *number) WF_NODISCARD;
wf_status wf_json_int(const wf_json *json, int object, const char *key, int least, int *number) WF_NODISCARD;
wf_status wf_json_bool(const wf_json *json, int object, const char *key, bool *value) WF_NODISCARD;

/* --- follow.c */
void wf_plan_watch_free(struct wf_plan_watch *watch);

/* --- cache.c: numbers by text, in a file that grows ---------------------------------------------------------------
 */
/* The file is `kernels` in this folder, which is made; NULL: nothing is kept. A file that cannot be read or written is
 * as one that is empty. */
wf_plan_cache *wf_plan_cache_open(wf_ctx *ctx, const char *folder);
void wf_plan_cache_close(wf_plan_cache *cache);
bool wf_plan_cache_find(const wf_plan_cache *cache, const char *key, int count, double *numbers);
void wf_plan_cache_add(wf_plan_cache *cache, const char *key, int count, const double *numbers);

/* --- hidden_sums.c: sums of gradients that go on while backward does
 * ------------------------------------------------------
 */
/* Backward of a step, layer by layer from the last one: full buckets are summed one after the other beside it. */
typedef struct wf_hidden_sums {
    wf_planner_overlap rates;
    double wall_s, alone_s;        /* of backward so far: with sums beside it; by itself */
    double left_s;                 /* of the sums that have begun */
    double bytes, limit, bucket_s; /* of the bucket that is filled; bytes of a full one; what its sum takes */
} wf_hidden_sums;
wf_hidden_sums wf_hidden_sums_begin(wf_planner_overlap rates);
/* A layer's backward; then its gradients are complete, whose sum takes so long by itself. */
void wf_hidden_sums_add(wf_hidden_sums *sums, double backward_s, double bytes, double sum_s);
/* By how much the sums make backward longer, with what is left of them behind it. */
double wf_hidden_sums_shown(wf_hidden_sums *sums);

/* --- measure.c, overlap.c and links.c
 * ------------------------------------------------------------------------------------------
 */
/* Identifies a model, its shapes and its options in the cache. */
uint64_t wf_gauge_signature(const wf_planner_model *m);
/* Measures the overlap rates of the library's meter. Collective. */
wf_status wf_gauge_overlap(void *gauge, const wf_planner_model *m, int64_t batch,
                           wf_planner_overlap *rates) WF_NODISCARD;
/* alpha, beta and gamma of the meter's links, exchanges and messages, inside a node where the gauge has several ranks
 * there, and between nodes where it has several; what cannot be measured stays. */
wf_status wf_gauge_links(wf_gauge *gauge, wf_planner_meter *meter) WF_NODISCARD;
/* Numbers that are known; and numbers that were measured, of which the ranks' largest are kept. Collective. */
wf_status wf_gauge_find(wf_gauge *gauge, const char *key, int count, double *numbers, bool *found) WF_NODISCARD;
wf_status wf_gauge_note(wf_gauge *gauge, const char *key, int count, double *numbers) WF_NODISCARD;
/* The median of `count` numbers, which are sorted. */
double wf_gauge_median(double *numbers, int count);

/* --- curves.c: predictions for growing numbers of ranks -------------------------------------------------------------
 */
typedef struct wf_curves_opts {
    const wf_planner_opts *plan; /* of the plan: its limits are those of every point */
    int most;                    /* ranks */
    const char *path;            /* PATH.csv and PATH.svg */
} wf_curves_opts;
/* Strong scaling, of the plan's batch, and weak scaling, of the plan's batch of each place along data: the plan's mesh
 * with more and more places along data, on nodes of as many ranks as the plan's. Points that do not fit into the
 * memory, or whose batch is smaller than the chunks of a pipeline, are left out. Collective. */
wf_status wf_planner_curves(const wf_gauge *gauge, const wf_planner_model *m, const wf_planner_meter *meter,
                            const wf_training_plan *plan, const wf_curves_opts *opts) WF_NODISCARD;

/* --- search.c and stages.c ------------------------------------------------------------------------------------------
 */
#define WF_STATES 4 /* sums of WF_PARALLEL_CHANNEL and WF_PARALLEL_SPATIAL */

/* A candidate: one choice of forms for the units up to here. */
typedef struct wf_candidate {
    double seconds, bytes; /* bytes: of memory */
    int before;            /* of the unit before, by number */
    uint8_t form, state;
    bool recompute;
} wf_candidate;

typedef struct wf_search {
    const wf_planner_model *m;
    const wf_planner_opts *o;
    const wf_place *place;
    double words;         /* of memory for each parameter: value, gradient, and state */
    bool recompute, zero; /* zero: the optimizer's state is sharded */
    wf_unit_cost *cost;   /* by unit, form and state */
    wf_candidate *candidate;
    int *candidates; /* of each unit: how many */
    wf_training_plan *best;
    double least; /* memory, of what did not fit */
    wf_mesh_opts least_mesh;
} wf_search;

static inline wf_unit_cost *wf_search_cost(const wf_search *s, int unit, unsigned form, int state)
{
    return &s->cost[(unit * WF_STATES + (int)form) * WF_STATES + state];
}

double wf_search_params(const wf_planner_model *m);
/* Bytes that do not depend on the forms: parameters that are not trained, the input of so many samples, and what a step
 * needs at its peak. */
double wf_search_base(const wf_search *s, int64_t batch);
double wf_search_words(const wf_search *s);  /* of memory for each parameter */
double wf_search_leaves(const wf_search *s); /* seconds of all leaves */
wf_training_plan *wf_search_plan(const wf_search *s);
/* Cost of a unit's gradients: seconds of the sum, seconds of the all-gather after the update, and the bytes that a rank
 * sends for both. */
double wf_search_sum(const wf_search *s, const wf_unit_cost *cost);
double wf_search_gather(const wf_search *s, const wf_unit_cost *cost);
double wf_search_sum_bytes(const wf_search *s, const wf_unit_cost *cost);
/* True, and noted, if a rank has not so much memory. */
bool wf_search_too_large(wf_search *s, double bytes);
/* Takes the plan: it is the best one now, or it is freed. */
void wf_search_take(wf_search *s, wf_training_plan *plan);
/* The fastest forms of all units on the place: the cost of each, and how its input is split. The last one is not
 * possible where none has an output that a loss takes. */
wf_status wf_search_forms(wf_search *s, wf_unit_cost *cost, int *state) WF_NODISCARD;
/* A pipeline of the place's stages, whose batch is one of these chunks. */
wf_status wf_search_stages(wf_search *s, int chunks) WF_NODISCARD;

static inline int wf_mesh_opts_size(wf_mesh_opts m)
{
    return m.data * m.channel * m.depth * m.height * m.width * m.stage;
}

#endif
