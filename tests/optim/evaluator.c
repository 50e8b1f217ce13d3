/* Figures over all ranks count every sample once; running statistics are those of all samples. */
#include "optim/evaluator.h"
#include "comm/comm_author.h"
#include "core/core.h"
#include "layers/layers.h"
#include "optim/confusion.h"
#include "optim/early_stop.h"
#include "tests/ranks.h"
#include "tests/world.h"

#include <math.h>
#include <string.h>
#include <weft_places.h>

static double sample(int64_t i)
{
    return 0.25 * (double)(i * i % 23);
}

/* n samples in batches of 3, in blocks over the ranks. */
static void samples(int64_t n)
{
    int64_t lo, hi;
    double want = 0;
    wf_evaluator *e = wf_evaluator_new(comm);
    wf_block(n, size, rank, &lo, &hi);
    for (int64_t i = 0; i < n; i++)
        want += sample(i) / (double)n;
    for (int round = 0; round < 2; round++) {
        for (int64_t i = lo; i < hi; i += 3) {
            const int64_t end = i + 3 < hi ? i + 3 : hi;
            double sum = 0;
            for (int64_t k = i; k < end; k++)
                sum += sample(k);
            WF_EXPECT_OK(wf_evaluator_add(e, "loss", sum / (double)(end - i), (double)(end - i)));
            WF_EXPECT_OK(wf_evaluator_add_sum(e, "sum", sum, (double)(end - i)));
        }
        WF_EXPECT_OK(wf_evaluator_finish(e));
        const double mean = wf_evaluator_mean(e, "loss"), exact = wf_evaluator_mean(e, "sum");
        WF_EXPECT(n == 0 ? isnan(mean) : fabs(mean - want) < 1e-12 && fabs(exact - want) < 1e-12,
                  "%lld samples: %g and %g, should be %g", (long long)n, mean, exact, want);
        WF_EXPECT(wf_evaluator_weight(e, "loss") == (double)n, "weight %g", wf_evaluator_weight(e, "loss"));
    }
    wf_evaluator_free(e);
}

static void any_count(void)
{
    static const int64_t counts[] = {0, 1, 2, 3, 7, 10, 31, 100};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        samples(counts[i]);
}

enum { CLASSES = 4, PIXELS = 3, IMAGES = 7 };

/* A label that no class has: 9. Class 2 is predicted and never a label, the last neither. */
static int64_t label_at(int64_t i)
{
    return i % 5 == 4 ? 9 : i * i % 3;
}

static int64_t predicted_at(int64_t i)
{
    return i % 3;
}

/* Scores and labels of images [lo, hi). */
static void add_images(wf_confusion *c, wf_tape *tape, int64_t lo, int64_t hi)
{
    float score[IMAGES * CLASSES * PIXELS] = {0};
    int32_t label[IMAGES * PIXELS];
    for (int64_t n = lo; n < hi; n++)
        for (int64_t p = 0; p < PIXELS; p++) {
            const int64_t i = n * PIXELS + p;
            score[((n - lo) * CLASSES + predicted_at(i)) * PIXELS + p] = 1 + (float)i;
            label[(n - lo) * PIXELS + p] = (int32_t)label_at(i);
        }
    wf_tensor *x = wf_tensor_from_host(ctx, WF_F32, WF_SHAPE(hi - lo, CLASSES, PIXELS), score);
    wf_tensor *t = wf_tensor_from_host(ctx, WF_I32, WF_SHAPE(hi - lo, PIXELS), label);
    const wf_label_opts opts = {.ignores = true, .ignored = 9};
    WF_EXPECT_OK(wf_confusion_add(c, wf_input(tape, x), t, opts));
    if (lo < hi)
        WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_confusion_add(c, wf_input(tape, x), t, (wf_label_opts){0}));
    wf_tensor_free(x);
    wf_tensor_free(t);
}

/* Losses keep the least number for themselves (wf_label_opts), so no label that is ignored may be it; the next one may.
 */
static void refuse_least_label(wf_tape *tape)
{
    const float score[2 * CLASSES] = {0};
    const int64_t label[2] = {0, 1};
    wf_confusion *c = wf_confusion_new(comm, CLASSES);
    wf_tensor *x = wf_tensor_from_host(ctx, WF_F32, WF_SHAPE(2, CLASSES), score);
    wf_tensor *t = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(2), label);
    const wf_label_opts least = {.ignores = true, .ignored = INT64_MIN},
                        next = {.ignores = true, .ignored = INT64_MIN + 1}, unused = {.ignored = INT64_MIN};
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_confusion_add(c, wf_input(tape, x), t, least));
    WF_EXPECT_OK(wf_confusion_add(c, wf_input(tape, x), t, next));
    WF_EXPECT_OK(wf_confusion_add(c, wf_input(tape, x), t, unused));
    WF_EXPECT_OK(wf_confusion_finish(c));
    WF_EXPECT(wf_confusion_count(c, 0, 0) == 2 * size && wf_confusion_count(c, 1, 0) == 2 * size,
              "%lld and %lld rows, should be %d each", (long long)wf_confusion_count(c, 0, 0),
              (long long)wf_confusion_count(c, 1, 0), 2 * size);
    wf_tensor_free(x);
    wf_tensor_free(t);
    wf_confusion_free(c);
}

/* All ranks have the figures of all images, of which the first rank has none and the last the most. */
static void confusions(void)
{
    int64_t want[CLASSES][CLASSES] = {{0}}, right[CLASSES] = {0}, labels[CLASSES] = {0}, taken[CLASSES] = {0};
    double iou = 0, precision = 0, all = 0, hits = 0;
    wf_confusion *c = wf_confusion_new(comm, CLASSES);
    wf_tape *tape = wf_tape_new(ctx);
    for (int64_t i = 0; i < IMAGES * PIXELS; i++)
        if (label_at(i) < CLASSES)
            want[label_at(i)][predicted_at(i)]++;
    for (int64_t r = 0; r < CLASSES; r++)
        for (int64_t k = 0; k < CLASSES; k++) {
            right[r] += r == k ? want[r][k] : 0;
            labels[r] += want[r][k];
            taken[k] += want[r][k];
        }
    const int64_t lo = size > 1 ? rank * (rank + 1) / 2 - (rank > 0) : 0;
    const int64_t hi = rank == size - 1 ? IMAGES : (rank + 1) * (rank + 2) / 2 - 1;
    WF_EXPECT(isnan(wf_confusion_accuracy(c)) && isnan(wf_confusion_macro(c, WF_F1)), "figures of no rows");
    refuse_least_label(tape);
    for (int round = 0; round < 2; round++) {
        for (int64_t n = lo; n < hi; n += 2)
            add_images(c, tape, n, n + 2 < hi ? n + 2 : hi);
        add_images(c, tape, hi, hi);
        WF_EXPECT_OK(wf_confusion_finish(c));
    }
    for (int64_t k = 0; k < CLASSES; k++) {
        for (int64_t p = 0; p < CLASSES; p++)
            WF_EXPECT(wf_confusion_count(c, k, p) == want[k][p], "%d taken for %d: %lld, should be %lld", (int)k,
                      (int)p, (long long)wf_confusion_count(c, k, p), (long long)want[k][p]);
        if (labels[k] + taken[k] == 0)
            continue;
        const double f1 = 2 * (double)right[k] / (double)(labels[k] + taken[k]);
        const double recall = labels[k] > 0 ? (double)right[k] / (double)labels[k] : 0;
        WF_EXPECT(wf_confusion_of_class(c, WF_F1, k) == f1 && wf_confusion_of_class(c, WF_RECALL, k) == recall,
                  "class %d: F1 %g, recall %g", (int)k, wf_confusion_of_class(c, WF_F1, k),
                  wf_confusion_of_class(c, WF_RECALL, k));
        iou += (double)right[k] / (double)(labels[k] + taken[k] - right[k]) / 3;
        precision += (double)right[k] / (double)taken[k] / 3;
        all += (double)labels[k];
        hits += (double)right[k];
    }
    WF_EXPECT(isnan(wf_confusion_of_class(c, WF_IOU, CLASSES - 1)), "a class that is not there has a figure");
    WF_EXPECT(fabs(wf_confusion_macro(c, WF_IOU) - iou) < 1e-15, "mean IoU %g, should be %g",
              wf_confusion_macro(c, WF_IOU), iou);
    WF_EXPECT(fabs(wf_confusion_macro(c, WF_PRECISION) - precision) < 1e-15, "mean precision %g, should be %g",
              wf_confusion_macro(c, WF_PRECISION), precision);
    WF_EXPECT(wf_confusion_accuracy(c) == hits / all && wf_confusion_micro(c, WF_F1) == hits / all, "accuracy %g",
              wf_confusion_accuracy(c));
    WF_EXPECT(wf_confusion_micro(c, WF_IOU) == hits / (2 * all - hits), "IoU of all %g", wf_confusion_micro(c, WF_IOU));
    WF_EXPECT(!wf_confusion_new(comm, 0), "a matrix of no classes");
    wf_error_clear();
    wf_confusion_free(c);
    wf_tape_free(tape);
}

/* Each rank has a name of its own, and NaN of an empty batch does no harm. */
static void names(void)
{
    static const char *const own[] = {"a", "b", "c", "d"};
    wf_evaluator *e = wf_evaluator_new(comm);
    WF_EXPECT_OK(wf_evaluator_add(e, own[rank], rank + 1, 2));
    WF_EXPECT_OK(wf_evaluator_add(e, "all", NAN, 0));
    WF_EXPECT_OK(wf_evaluator_finish(e));
    WF_EXPECT(wf_evaluator_count(e) == size + 1, "%lld names", (long long)wf_evaluator_count(e));
    for (int r = 0; r < size; r++)
        WF_EXPECT(wf_evaluator_mean(e, own[r]) == r + 1, "%s is %g", own[r], wf_evaluator_mean(e, own[r]));
    WF_EXPECT(!strcmp(wf_evaluator_name(e, 0), "a") && !strcmp(wf_evaluator_name(e, 1), "all"), "%s then %s",
              wf_evaluator_name(e, 0), wf_evaluator_name(e, 1));
    WF_EXPECT(isnan(wf_evaluator_mean(e, "all")) && isnan(wf_evaluator_mean(e, "none")), "means of nothing");
    WF_EXPECT(!wf_evaluator_name(e, size + 1), "a name too many");
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_evaluator_add(e, "", 1, 1));
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_evaluator_add(e, "x", 1, -1));
    wf_evaluator_free(e);
}

static double of_rank(int r, int64_t c, bool variance)
{
    return variance ? 1 + 0.5 * r + (double)c : 2.0 * r - (double)c;
}

static void set(wf_param *param, int r, bool variance)
{
    float host[3];
    for (int64_t c = 0; c < 3; c++)
        host[c] = (float)of_rank(r, c, variance);
    WF_EXPECT_OK(wf_tensor_import(wf_param_value(param), host, sizeof host));
}

static void expect_param(wf_param *param, const double *want)
{
    float host[3];
    double got[3];
    WF_EXPECT_OK(wf_tensor_export(wf_param_value(param), host, sizeof host));
    for (int c = 0; c < 3; c++)
        got[c] = host[c];
    WF_EXPECT(test_distance(3, got, want) < 1e-6, "%s is off by %g", wf_param_path(param), test_distance(3, got, want));
}

/* Rank r counts r + 1; what is learned stays. */
static void statistics(void)
{
    double mean[3] = {0}, var[3] = {0}, gamma[3];
    wf_layer *model = wf_sequential(ctx, WF_LAYERS(wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 3})));
    wf_param *gain = wf_layer_param(model, "0/gamma");
    set(gain, rank, false);
    set(wf_layer_param(model, "0/avg_mean"), rank, false);
    set(wf_layer_param(model, "0/avg_var"), rank, true);
    for (int c = 0; c < 3; c++) {
        const double total = size * (size + 1) / 2.0;
        gamma[c] = of_rank(rank, c, false);
        for (int r = 0; r < size; r++)
            mean[c] += (r + 1) / total * of_rank(r, c, false);
        for (int r = 0; r < size; r++)
            var[c] += (r + 1) / total * (of_rank(r, c, true) + pow(of_rank(r, c, false) - mean[c], 2));
    }
    WF_EXPECT_OK(wf_allreduce_persistent(comm, model, rank + 1));
    expect_param(wf_layer_param(model, "0/avg_mean"), mean);
    expect_param(wf_layer_param(model, "0/avg_var"), var);
    expect_param(gain, gamma);
    wf_layer_free(model);
}

/* Rank r finds the numbers r, r + 1, ... 2 r - 1: none on rank 0. */
static wf_status add_up(void *user, int ranks, const wf_finding *findings)
{
    int64_t *sum = user;
    WF_EXPECT(ranks == size, "%d findings", ranks);
    for (int r = 0; r < ranks; r++) {
        const int64_t *numbers = findings[r].data;
        WF_EXPECT(findings[r].bytes == (size_t)r * sizeof *numbers, "rank %d found %zu bytes", r, findings[r].bytes);
        for (int64_t i = 0; i < r; i++)
            *sum = 3 * *sum + numbers[i];
    }
    return WF_OK;
}

static wf_status fail_on_last(void *user, int ranks, const wf_finding *findings)
{
    WF_CHECK(rank < size - 1, WF_ERR_NUMERIC, "nothing to rank");
    return WF_OK;
}

static void findings(void)
{
    int64_t numbers[8], sum = 0, want = 0;
    for (int i = 0; i < rank; i++)
        numbers[i] = rank + i;
    for (int r = 0; r < size; r++)
        for (int i = 0; i < r; i++)
            want = 3 * want + r + i;
    WF_EXPECT_OK(wf_evaluate_all(comm, rank ? numbers : NULL, (size_t)rank * sizeof *numbers, add_up, &sum));
    WF_EXPECT(sum == want, "the result is %lld, should be %lld", (long long)sum, (long long)want);
}

static wf_status count_ranks(void *user, int ranks, const wf_finding *findings)
{
    return ranks == size ? WF_OK : WF_RAISE(WF_ERR_STATE, "%d ranks", ranks);
}

static wf_status failing_aggregation(wf_comm *own, bool last)
{
    return wf_evaluate_all(own, NULL, 0, fail_on_last, NULL);
}

static wf_status no_aggregation(wf_comm *own, bool last)
{
    return wf_evaluate_all(own, NULL, 0, last ? NULL : count_ranks, NULL);
}

static wf_status negative_weight(wf_comm *own, bool last)
{
    bool stops;
    wf_early_stop *stop = wf_early_stop_new(own, (wf_early_stop_opts){0});
    const wf_status status = wf_early_stop_observe(stop, 1, last ? -2 : 1, &stops);
    wf_early_stop_free(stop);
    return status;
}

static wf_status nowhere_to_say_so(wf_comm *own, bool last)
{
    bool stops;
    wf_early_stop *stop = wf_early_stop_new(own, (wf_early_stop_opts){0});
    const wf_status status = wf_early_stop_observe(stop, 1, 1, last ? NULL : &stops);
    wf_early_stop_free(stop);
    return status;
}

/* A rank that fails alone takes the others along, at the latest in their next collective. */
static void one_rank_fails(void)
{
    static const struct {
        wf_status (*run)(wf_comm *own, bool last);
        wf_status code;
        const char *says;
    } cases[] = {{failing_aggregation, WF_ERR_NUMERIC, "nothing to rank"},
                 {no_aggregation, WF_ERR_ARGUMENT, "takes a function"},
                 {negative_weight, WF_ERR_ARGUMENT, "weight -2"},
                 {nowhere_to_say_so, WF_ERR_ARGUMENT, "stops is NULL"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        wf_comm *own = test_comm_open("flat", (wf_ctx_opts){0});
        wf_status status = cases[i].run(own, rank == size - 1);
        if (status == WF_OK)
            status = wf_barrier(own);
        WF_EXPECT(status == cases[i].code && strstr(wf_error_message(), cases[i].says), "%s: %s",
                  wf_status_name(status), wf_error_message());
        wf_error_clear();
        (void)!wf_comm_close(own);
        wf_error_clear();
    }
}

/* The mean over all ranks decides, though the ranks see opposite trends; the last rank has no samples. */
static void early_stop(void)
{
    static const double means[] = {3, 2, 1, 1.05, 0.95, NAN, 2, 5};
    static const bool want[] = {false, false, false, false, false, false, true, true};
    wf_early_stop *stop = wf_early_stop_new(comm, (wf_early_stop_opts){.patience = 4, .least = 0.1});
    WF_EXPECT(stop && isnan(wf_early_stop_best(stop)), "%s", wf_error_message());
    for (int i = 0; i < 8; i++) {
        const bool none = size > 1 && rank == size - 1;
        const double others = size > 2 ? size - 2 : 0, off = rank == 0 ? others : -1;
        bool stops = false;
        WF_EXPECT_OK(
            wf_early_stop_observe(stop, none ? NAN : means[i] + (size > 2 ? 10 * i * off : 0), none ? 0 : 2, &stops));
        WF_EXPECT(stops == want[i], "observation %d on rank %d: stops is %d", i, rank, stops);
    }
    WF_EXPECT(fabs(wf_early_stop_best(stop) - 1) < 1e-12, "the best is %g", wf_early_stop_best(stop));
    wf_early_stop_free(stop);
    WF_EXPECT(!wf_early_stop_new(comm, (wf_early_stop_opts){.patience = -1}), "a negative patience");
    wf_error_clear();
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open("flat"))
        return 1;
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"any_count", any_count},
                                               {"confusions", confusions},
                                               {"names", names},
                                               {"statistics", statistics},
                                               {"findings", findings},
                                               {"one_rank_fails", one_rank_fails},
                                               {"early_stop", early_stop},
                                               {0}});
    return ranks_close(failed);
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
