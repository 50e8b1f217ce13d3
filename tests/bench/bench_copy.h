/* A plain copy within device memory: what passes over memory are measured against. */
#ifndef WF_TESTS_BENCH_COPY_H
#define WF_TESTS_BENCH_COPY_H

#include "tests/bench/bench.h"

/* Put on the stream, like all work of the device. */
wf_status bench_copy(wf_ctx *ctx, wf_stream *stream, void *to, const void *from, size_t bytes);
/* The host's, by all threads of the context. */
wf_status bench_copy_host(wf_ctx *ctx, void *to, const void *from, size_t bytes);

#endif
