/* The engines of the emulated cuDNN, for tests that want to choose which of them there are.
 *
 * In the order in which its heuristics name them. A graph is executed by plain loops; engines differ in what they take,
 * in their precision and in how long they seem to take. */
#ifndef WF_TESTS_EMULATE_DNN_H
#define WF_TESTS_EMULATE_DNN_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    EMULATED_LATE = 1,    /* named by the heuristics, but takes nothing when a plan is finalised */
    EMULATED_BROKEN = 2,  /* makes plans, which fail when they run */
    EMULATED_ROUGH = 4,   /* converts its inputs to less: its results are wrong */
    EMULATED_TENSOR = 8,  /* packs of 16 bytes, equal pads, f32 as tf32, wants workspace; forward with a bias, or a bias
                             and ReLU; fast */
    EMULATED_ATOMIC = 16, /* equal pads; not deterministic */
    EMULATED_PLAIN = 32,  /* equal pads */
    EMULATED_UNEVEN = 64, /* any pads; the slowest */
    EMULATED_BIAS = 128,  /* cuBLASLt's epilogue for f64, which it may not have */
    EMULATED_COMPILED = 256, /* compiled for its graph, which may be any; as fast as EMULATED_TENSOR */
    EMULATED_CRAWLING = 512, /* compiled for its graph; slow */
    EMULATED_STRICT = 1024, /* like EMULATED_TENSOR, and a NaN comes through its ReLU: in that of others it becomes 0 */
    EMULATED_ENGINES = 2047
};

/* Sets the engines that exist from now on; at the start all do. Existing plans stay. */
void emulated_engines(unsigned present);
unsigned emulated_present(void);
/* Graphs that were made so far, and modes of heuristics that were asked; plans that were finalised, and those of them
 * that were compiled; runs; of the last run, the engine and the sum of the convolution's pads. */
int emulated_graphs(void);
int emulated_questions(void);
int emulated_plans(void);
/* Plans take so long from now on. */
void emulated_plans_take(int milliseconds);
int emulated_compiled(void);
int emulated_runs(void);
/* How many lists of arrays were made for them, and how often cuDNN was told its stream. */
int emulated_packs(void);
int emulated_streams_told(void);
unsigned emulated_last_engine(void);
int emulated_last_pads(void);
/* From now on the device computes nothing, its memory holds nothing and takes nothing, and what is read from it is 0:
 * for programs of which only the shapes matter. Before the first allocation. */
void emulated_idle(void);
/* From now on cudaMalloc gives so many bytes more than were taken and not freed; at the start as many as the arena has.
 */
void emulated_room(size_t bytes);
/* Ten times the compute capability from now on; 90 at the start. */
void emulated_capability(int tens);
/* How often the host has waited for a stream, an event or the device. */
int emulated_waits(void);
/* How many tasks, of kernels and copies, were put on streams. */
int emulated_tasks(void);
/* True if the stream that was made last has the greatest priority. */
bool emulated_hurries(void);
/* How often the driver was asked for the blocks of a kernel that a multiprocessor holds. */
int emulated_fits_asked(void);
/* CUDA's number of the error with which memory is shared between processes from now on; 0, as at the start: with none.
 */
void emulated_bar_sharing(int error);

#ifdef __cplusplus
}
#endif
#endif
