/* The activation and noise that follow a layer in the same pass: which options are valid, and the epilogue that a
 * kernel gets. */
#include "layers/serial/serial_impl.h"

wf_status wf_epilogue_check(const char *what, wf_epilogue_opts *o)
{
    WF_CHECK(o->act == WF_ACT_NONE || o->act == WF_ACT_RELU || o->act == WF_ACT_LEAKY_RELU, WF_ERR_ARGUMENT,
             "%s: act is %d; only relu and leaky relu go in the same pass, others are functions of their own", what,
             (int)o->act);
    WF_CHECK(o->noise >= 0, WF_ERR_ARGUMENT, "%s: noise is %g, should be a standard deviation", what, o->noise);
    WF_CHECK(o->slope >= 0, WF_ERR_ARGUMENT, "%s: slope is %g, should be above 0", what, o->slope);
    /* An options struct of zeros means the default, so a slope of exactly 0 is relu's name. */
    if (o->slope == 0)
        o->slope = 0.01;
    return WF_OK;
}

wf_epilogue wf_epilogue_on(const wf_epilogue_opts *o, wf_tape *tape, const wf_tensor *y)
{
    wf_epilogue e = {.act = o->act, .slope = o->slope};
    if (o->noise > 0 && wf_tape_mode(tape) == WF_TRAIN) {
        e.noise = o->noise;
        e.random = wf_tape_random(tape, y->shape, &y->layout);
    }
    return e;
}

bool wf_epilogue_acts(const wf_epilogue *e)
{
    return e->act != WF_ACT_NONE;
}

/* Noise is drawn for the block's place in the global output. */
wf_epilogue wf_epilogue_part(const wf_epilogue *whole, wf_box out)
{
    wf_epilogue epilogue = *whole;
    wf_box *part = &epilogue.random.box;
    for (int d = 2; d < out.rank; d++) {
        part->lo[d] = out.lo[d];
        part->hi[d] = out.hi[d];
    }
    part->hi[0] = part->lo[0] + out.hi[0];
    part->lo[0] += out.lo[0];
    return epilogue;
}
