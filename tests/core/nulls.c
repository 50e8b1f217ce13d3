/* Plain functions take NULL and zeros; the threads of the program stay the program's. */
#include "core/context.h"
#include "core/layout.h"
#include "core/window.h"
#include "tests/test.h"

#include <omp.h>
#include <string.h>

static void layouts(void)
{
    const wf_layout none = wf_layout_none();
    wf_layout out;
    char text[WF_LAYOUT_TEXT];
    WF_EXPECT(wf_layout_equal(NULL, NULL) && !wf_layout_equal(&none, NULL) && !wf_layout_equal(NULL, &none), "equal");
    WF_EXPECT(!wf_layout_is_partial(NULL) && !wf_layout_is_sharded(NULL, 0), "no layout has no parts");
    WF_EXPECT(!strcmp(wf_layout_text(NULL, text), "no layout") && !strcmp(wf_layout_text(&none, NULL), ""), "texts");
    WF_EXPECT(!wf_layout_follow(NULL, wf_shape_scalar(), NULL, &out), "follows none");
    WF_EXPECT(!wf_layout_follow(&none, wf_shape_scalar(), NULL, NULL), "nowhere to go");
}

static void shapes(void)
{
    int64_t lo = 1, hi = 2;
    WF_EXPECT(!strcmp(wf_shape_text(wf_shape_scalar(), NULL), ""), "no text");
    WF_EXPECT(wf_shape_make(2, NULL).rank == -1, "a shape of nothing");
    wf_block(7, 0, 0, &lo, &hi);
    WF_EXPECT(lo == 0 && hi == 0, "a part of none is [%lld,%lld)", (long long)lo, (long long)hi);
    wf_block(7, 2, 0, NULL, NULL);
    wf_order_strides(wf_shape_scalar(), WF_ROW_MAJOR, NULL);
}

static void windows(void)
{
    const wf_window zero = {0};
    const wf_range all = {0, 4};
    WF_EXPECT(wf_window_outputs(zero, 4, false) >= 0 && wf_window_outputs(zero, 4, true) >= 0, "outputs");
    const wf_range a = wf_window_anchored(zero, all, 4, false, false), b = wf_window_readers(zero, all, 4);
    WF_EXPECT(a.lo <= a.hi && b.lo <= b.hi, "ranges");
}

static void threads(void)
{
    const int before = omp_get_max_threads();
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = "cpu", .threads = before + 3});
    WF_EXPECT(omp_get_max_threads() == before, "a context changes the program's threads from %d to %d", before,
              omp_get_max_threads());
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

int main(int argc, char **argv)
{
    return test_main(
        argc, argv,
        (test_case[]){{"layouts", layouts}, {"shapes", shapes}, {"windows", windows}, {"threads", threads}, {0}});
}
