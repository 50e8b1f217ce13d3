/* A trainer that ends by time: in the same iteration on all ranks, whose clocks and speeds differ; shares of a run, and
 * what is due by them. No time is asserted but the least. */
#include "optim/trainer.h"
#include "tests/ranks.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 4096 };

typedef struct notes {
    double share[MOST]; /* before each iteration */
    int n, due;
    char text[64]; /* iterations in which the hook was called, of runs of up to ten */
} notes;

/* Every rank takes another time, and another one from iteration to iteration. */
static wf_status uneven_step(wf_trainer *trainer, void *user)
{
    notes *n = user;
    WF_EXPECT(n->n < MOST, "more than %d iterations", MOST);
    n->share[n->n++] = wf_trainer_share(trainer);
    usleep((useconds_t)(1000 + 700 * rank * (n->n % 3)));
    return WF_OK;
}

static wf_status quick_step(wf_trainer *trainer, void *user)
{
    notes *n = user;
    if (n->n < MOST)
        n->share[n->n++] = wf_trainer_share(trainer);
    return WF_OK;
}

static wf_status note_due(wf_trainer *trainer, void *user)
{
    notes *n = user;
    n->due++;
    if (wf_trainer_iteration(trainer) < 10)
        n->text[strlen(n->text)] = (char)('0' + wf_trainer_iteration(trainer));
    return WF_OK;
}

/* Rank 0's notes are those of all. */
static void same_on_all(const notes *n, int64_t iterations)
{
    static notes first;
    first = *n;
    WF_EXPECT_OK(wf_bcast_bytes(comm, &first, sizeof first, 0));
    WF_EXPECT(n->n == first.n && n->due == first.due && n->n == iterations,
              "rank %d: %d iterations (%lld), %d times due; rank 0: %d and %d", rank, n->n, (long long)iterations,
              n->due, first.n, first.due);
    for (int i = 0; i < n->n; i++) {
        WF_EXPECT(n->share[i] == first.share[i], "iteration %d: share %g, on rank 0 %g", i, n->share[i],
                  first.share[i]);
        WF_EXPECT(n->share[i] >= (i ? n->share[i - 1] : 0) && n->share[i] <= 1, "iteration %d: share %g after %g", i,
                  n->share[i], i ? n->share[i - 1] : 0);
    }
}

/* Quarters that end in the same iteration make it due once. */
static void ends_together(void)
{
    static notes n;
    n = (notes){0};
    wf_trainer *t = wf_trainer_new(comm, uneven_step, &n, (wf_trainer_opts){.seconds = 0.25});
    WF_EXPECT_OK(wf_trainer_add_hook(t, "quarters", note_due, &n, (wf_when){.share = 0.25}));
    WF_EXPECT_OK(wf_trainer_run(t));
    same_on_all(&n, wf_trainer_iteration(t));
    WF_EXPECT(n.due >= 1 && n.due <= 4, "%d quarters", n.due);
    WF_EXPECT(wf_trainer_share(t) == 1, "share %g at the end", wf_trainer_share(t));
    WF_EXPECT(rank != 0 || wf_trainer_seconds(t) >= 0.25, "ended after %g s", wf_trainer_seconds(t));
    WF_EXPECT_OK(wf_trainer_run(t)); /* no time is left */
    WF_EXPECT(n.n == (int)wf_trainer_iteration(t), "%d iterations", n.n);
    wf_trainer_free(t);
}

/* The bound that is reached first counts; here it is never the time. */
static void ends_by_count(void)
{
    for (int timed = 0; timed < 2; timed++) {
        notes n = {0};
        wf_trainer *t =
            wf_trainer_new(comm, quick_step, &n, (wf_trainer_opts){.iterations = 9, .seconds = timed ? 1e6 : 0});
        WF_EXPECT_OK(wf_trainer_add_hook(t, "thirds", note_due, &n, (wf_when){.share = 1.0 / 3}));
        WF_EXPECT_OK(wf_trainer_run(t));
        same_on_all(&n, 9);
        WF_EXPECT(strcmp(n.text, "369") == 0, "due after %s, should be 369", n.text);
        WF_EXPECT(timed || (n.share[1] == 1.0 / 9 && n.share[8] == 8.0 / 9), "shares %g and %g", n.share[1],
                  n.share[8]);
        wf_trainer_free(t);
    }
    notes n = {0};
    wf_trainer *t = wf_trainer_new(comm, quick_step, &n, (wf_trainer_opts){.iterations = 10});
    WF_EXPECT_OK(wf_trainer_add_hook(t, "tenths", note_due, &n, (wf_when){.share = 0.1}));
    WF_EXPECT_OK(wf_trainer_run(t));
    WF_EXPECT(n.due == 10, "%d tenths", n.due);
    wf_trainer_free(t);
}

static wf_status stop_at_once(wf_trainer *trainer, void *user)
{
    wf_trainer_stop(trainer);
    return WF_OK;
}

/* A line in a file of what is left; none of it once the run is over. */
static void shows_what_is_left(void)
{
    int ends[2];
    char text[4096];
    WF_EXPECT(pipe(ends) == 0, "no pipe");
    wf_trainer *t = wf_trainer_new(comm, stop_at_once, NULL,
                                   (wf_trainer_opts){.seconds = 1e6, .report = {.iterations = 2}, .progress = ends[1]});
    WF_EXPECT_OK(wf_trainer_run(t));
    wf_trainer_free(t);
    close(ends[1]);
    const ssize_t got = read(ends[0], text, sizeof text - 1);
    text[got > 0 ? got : 0] = '\0';
    close(ends[0]);
    const bool good = strncmp(text, "iteration 1  ", 13) == 0 && strstr(text, "  277:46:") &&
                      strstr(text, " left\niteration 2  ") && !strstr(strstr(text, "\niteration 2  "), "left");
    WF_EXPECT(rank == 0 ? good : !*text, "rank %d shows:\n%s", rank, text);
}

/* Options that differ are the same error on all ranks, which end. */
static void ranks_differ(void)
{
    for (int how = 0; how < 2 && size > 1; how++) {
        notes n = {0};
        wf_comm *own = test_comm_open("flat", (wf_ctx_opts){0});
        const double other = how ? 0 : 200;
        wf_trainer *t = wf_trainer_new(
            own, quick_step, &n, (wf_trainer_opts){.iterations = 1000, .seconds = rank == size - 1 ? other : 300});
        const wf_status status = wf_trainer_run(t);
        WF_EXPECT(status == WF_ERR_ARGUMENT && strstr(wf_error_message(), "of 300 on rank 0"), "%s: %s",
                  wf_status_name(status), wf_error_message());
        wf_error_clear();
        wf_trainer_free(t);
        (void)!wf_comm_close(own);
        wf_error_clear();
    }
}

/* Its time is over before its first iteration, which it has all the same. */
static void has_one_iteration(void)
{
    static notes n;
    n = (notes){0};
    wf_trainer *trainer = wf_trainer_new(comm, uneven_step, &n, (wf_trainer_opts){.seconds = 1e-12});
    WF_EXPECT_OK(wf_trainer_run(trainer));
    same_on_all(&n, 1);
    wf_trainer_free(trainer);
}

static void misuse(void)
{
    const double wrong[] = {-1, NAN, INFINITY};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        WF_EXPECT(!wf_trainer_new(comm, quick_step, NULL, (wf_trainer_opts){.iterations = 1, .seconds = wrong[i]}),
                  "%g seconds are taken", wrong[i]);
        wf_error_clear();
    }
    wf_trainer *t = wf_trainer_new(comm, quick_step, NULL, (wf_trainer_opts){.seconds = 1});
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_trainer_add_hook(t, "less", quick_step, NULL, (wf_when){.share = -0.1}));
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_trainer_add_hook(t, "more", quick_step, NULL, (wf_when){.share = 1.1}));
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_trainer_add_hook(t, "none", quick_step, NULL, (wf_when){.share = NAN}));
    wf_trainer_free(t);
}

static int64_t asked; /* lengths of epochs */

static int64_t two_steps(void *user, int64_t epoch)
{
    asked++;
    return user ? *(const int64_t *)user : 2;
}

static wf_status stop_soon(wf_trainer *trainer, void *user)
{
    if (wf_trainer_iteration(trainer) == 20)
        wf_trainer_stop(trainer);
    return WF_OK;
}

/* A run without an end but by other means: epochs are not all counted, and not in every step. */
static void endless_epochs(void)
{
    int64_t long_epoch = INT64_MAX / 3;
    for (int k = 0; k < 4; k++) {
        notes n = {0};
        asked = 0;
        wf_trainer *t = wf_trainer_new(comm, quick_step, &n,
                                       (wf_trainer_opts){.length_at = two_steps,
                                                         .length_user = k == 2 ? &long_epoch : NULL,
                                                         .epochs = k ? INT64_MAX : 10000000,
                                                         .iterations = k == 3 ? 100 : 0,
                                                         .report = {.iterations = 1}});
        WF_EXPECT_OK(wf_trainer_add_hook(t, "stop", stop_soon, NULL, (wf_when){.iterations = 1}));
        WF_EXPECT_OK(wf_trainer_run(t));
        const int64_t most = k == 3 ? 11 * 52 + 100 : 11 * 4096 + 100;
        WF_EXPECT(asked < most, "%lld lengths were asked for in %d iterations: should be below %lld", (long long)asked,
                  n.n, (long long)most);
        const double share = n.share[n.n - 1], should = k == 3 ? (n.n - 1) / 100.0 : 0;
        WF_EXPECT(fabs(share - should) < 1e-5, "share %g before iteration %d: should be %g", share, n.n, should);
        wf_trainer_free(t);
        if (asked >= most)
            return; /* the next run would not end */
    }
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open("flat"))
        return 1;
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"ends_together", ends_together},
                                               {"has_one_iteration", has_one_iteration},
                                               {"ends_by_count", ends_by_count},
                                               {"shows_what_is_left", shows_what_is_left},
                                               {"ranks_differ", ranks_differ},
                                               {"misuse", misuse},
                                               {"endless_epochs", endless_epochs},
                                               {0}});
    return ranks_close(failed);
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
