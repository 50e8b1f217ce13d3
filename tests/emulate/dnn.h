/* The engines of the emulated cuDNN, for tests that want to choose which of them there are.
 *
 * In the order in which its heuristics name them. A graph is executed by plain loops; engines differ in what they take,
 * in their precision and in how long they seem to take. */
#ifndef WF_TESTS_EMULATE_DNN_H
#define WF_TESTS_EMULATE_DNN_H

#ifdef __cplusplus
extern "C" {
#endif

enum {
    EMULATED_LATE = 1,    /* named by the heuristics, but takes nothing when a plan is finalised */
    EMULATED_BROKEN = 2,  /* makes plans, which fail when they run */
    EMULATED_ROUGH = 4,   /* converts its inputs to less: its results are wrong */
    EMULATED_TENSOR = 8,  /* packs of 16 bytes, equal pads, f32 as tf32, wants workspace, fuses; the fastest */
    EMULATED_ATOMIC = 16, /* equal pads; not deterministic */
    EMULATED_PLAIN = 32,  /* equal pads */
    EMULATED_UNEVEN = 64, /* any pads; the slowest */
    EMULATED_BIAS = 128,  /* cuBLASLt's epilogue for f64, which it may not have */
    EMULATED_ENGINES = 255
};

/* Those present from now on; all of them at the start. Plans that exist stay. */
void emulated_engines(unsigned present);
unsigned emulated_present(void);
/* Plans that were finalised so far, runs so far; of the last run, the engine and the sum of the convolution's pads. */
int emulated_plans(void);
int emulated_runs(void);
unsigned emulated_last_engine(void);
int emulated_last_pads(void);
/* How often the host has waited for a stream, an event or the device. */
int emulated_waits(void);

#ifdef __cplusplus
}
#endif
#endif
