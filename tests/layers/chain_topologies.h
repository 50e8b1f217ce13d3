/* Models over several ranks, as lists of components. Every message has a name of its own, so that a reference finds the
 * two ends of it without knowing how the library does. */
#ifndef WF_TESTS_CHAIN_TOPOLOGIES_H
#define WF_TESTS_CHAIN_TOPOLOGIES_H

#include "layers/chain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SPECS = 24, MOST_ENDS = 8, NAME = 32 };

typedef enum topology { SELF = 0, CYCLE, CROSS, SHARED, MIXED, GATHERED, SPREAD, TWIST, TUPLE, TOPOLOGIES } topology;
/* SHARED to SPREAD are the four branches: one output to all, and to itself; inputs and outputs on all. */
static const char *const topology_name[] = {"self",     "cycle",  "cross", "shared branch", "branch with itself",
                                            "gathered", "spread", "twist", "tuple"};

typedef struct spec {
    int rank, n_in, n_out, outputs;
    char name[NAME];
    wf_chain_end in[MOST_ENDS], out[MOST_ENDS];
    char in_name[MOST_ENDS][NAME], out_name[MOST_ENDS][NAME];
} spec;

typedef struct specs {
    int n, ranks;
    spec of[MOST_SPECS];
} specs;

static inline spec *add_spec(specs *all, int rank, const char *name)
{
    spec *s = &all->of[all->n++];
    *s = (spec){.rank = rank};
    snprintf(s->name, NAME, "%s_%d", name, rank);
    return s;
}

static inline void takes(spec *s, int from, const char *message, int number)
{
    snprintf(s->in_name[s->n_in], NAME, "%s_%d", message, number);
    s->in[s->n_in++] = (wf_chain_end){.rank = from};
}

static inline void gives(spec *s, int output, int to, const char *message, int number)
{
    snprintf(s->out_name[s->n_out], NAME, "%s_%d", message, number);
    s->out[s->n_out++] = (wf_chain_end){.rank = to, .output = output};
    s->outputs = output + 1 > s->outputs ? output + 1 : s->outputs;
}

static inline void branches(specs *all, topology kind)
{
    const int ranks = all->ranks;
    if (kind == SHARED || kind == MIXED || kind == SPREAD) {
        spec *a = add_spec(all, 0, "a");
        takes(a, WF_OUTSIDE, "x", 0);
        for (int r = kind == MIXED ? 0 : 1; r < ranks; r++)
            gives(a, 0, r, "down", r);
        if (kind == SPREAD && ranks == 1)
            gives(a, 0, WF_OUTSIDE, "y", 0);
    }
    for (int r = 1; r < ranks; r++) {
        spec *child = add_spec(all, r, "child");
        if (kind == GATHERED)
            takes(child, WF_OUTSIDE, "x", r);
        else
            takes(child, 0, "down", r);
        if (kind == SPREAD)
            gives(child, 0, WF_OUTSIDE, "y", r);
        else
            gives(child, 0, 0, "up", r);
    }
    if (kind == SPREAD)
        return;
    spec *b = add_spec(all, 0, "b");
    if (kind == MIXED)
        takes(b, 0, "down", 0);
    for (int r = 1; r < ranks; r++)
        takes(b, r, "up", r);
    gives(b, 0, WF_OUTSIDE, "y", 0);
}

static inline void twist(specs *all)
{
    const int last = all->ranks - 1;
    for (int r = 0; r <= last; r++) {
        if (r > 0) {
            spec *back = add_spec(all, r, "back");
            takes(back, r - 1, "right", r - 1);
            gives(back, 0, r - 1, "left", r);
        }
        spec *begin = add_spec(all, r, "begin");
        takes(begin, WF_OUTSIDE, "x", r);
        if (r == last) {
            gives(begin, 0, WF_OUTSIDE, "y", r);
            continue;
        }
        gives(begin, 0, r + 1, "right", r);
        spec *end = add_spec(all, r, "end");
        takes(end, r + 1, "left", r + 1);
        gives(end, 0, WF_OUTSIDE, "y", r);
    }
}

static inline void tuple(specs *all)
{
    spec *a = add_spec(all, 0, "a");
    takes(a, WF_OUTSIDE, "x", 0);
    takes(a, WF_OUTSIDE, "x", 10);
    gives(a, 1, 1, "second", 0);
    gives(a, 0, 1, "first", 0);
    gives(a, 2, WF_OUTSIDE, "y", 10);
    spec *b = add_spec(all, 1, "b");
    takes(b, 0, "second", 0);
    takes(b, 0, "first", 0);
    gives(b, 0, 0, "back", 0);
    gives(b, 1, WF_OUTSIDE, "y", 1);
    gives(b, 0, all->ranks - 1, "on", 0);
    spec *c = add_spec(all, 0, "c");
    takes(c, 1, "back", 0);
    gives(c, 0, WF_OUTSIDE, "y", 0);
    spec *d = add_spec(all, all->ranks - 1, "d");
    takes(d, 1, "on", 0);
    gives(d, 0, WF_OUTSIDE, "y", 2);
}

/* Also where the list was rearranged. */
static inline void point_names(specs *all, bool named)
{
    for (int i = 0; i < all->n; i++)
        for (int e = 0; e < MOST_ENDS; e++) {
            all->of[i].in[e].name = named && e < all->of[i].n_in ? all->of[i].in_name[e] : NULL;
            all->of[i].out[e].name = named && e < all->of[i].n_out ? all->of[i].out_name[e] : NULL;
        }
}

/* Fewest ranks: 1 of SELF, 2 of the others. */
static inline void topology_of(topology kind, int ranks, bool named, specs *all)
{
    *all = (specs){.ranks = ranks};
    if (kind >= SHARED && kind <= SPREAD)
        branches(all, kind);
    if (kind == TWIST)
        twist(all);
    if (kind == TUPLE)
        tuple(all);
    for (int r = 0; r < (kind == SELF ? ranks : kind == CROSS ? 2 : 0); r++) {
        const int to = kind == SELF ? r : 1 - r;
        spec *a = add_spec(all, r, "a");
        takes(a, WF_OUTSIDE, "x", r);
        gives(a, 0, to, "over", r);
        if (kind == SELF)
            gives(a, 1, to, "again", r);
        spec *b = add_spec(all, r, "b");
        takes(b, to, "over", to);
        if (kind == SELF)
            takes(b, to, "again", to);
        gives(b, 0, WF_OUTSIDE, "y", r);
    }
    for (int r = 0; r <= ranks && kind == CYCLE; r++) {
        spec *pass = add_spec(all, r % ranks, r < ranks ? "pass" : "last");
        takes(pass, r == 0 ? WF_OUTSIDE : (r - 1) % ranks, r == 0 ? "x" : "round", r);
        gives(pass, 0, r == ranks ? WF_OUTSIDE : (r + 1) % ranks, r == ranks ? "y" : "round", r == ranks ? 0 : r + 1);
    }
    point_names(all, named);
}

static inline wf_component component_of(const spec *s)
{
    return (wf_component){
        .name = s->name, .outputs = s->outputs, .n_in = s->n_in, .in = s->in, .n_out = s->n_out, .out = s->out};
}

#endif
