/* ONNX's node cases, said by Weft's public functions.
 *
 * A case is a graph of nodes with its inputs and the outputs that ONNX expects (onnx_cases.py writes them, onnx_file.c
 * reads them). For each operator a file of its family has a function that computes the outputs from the inputs by what
 * a program has: the layers, the functions of variables, and constants. Such a function may read the numbers of an
 * input that says a shape, an axis or indices.
 */
#ifndef WF_TESTS_ONNX_H
#define WF_TESTS_ONNX_H

#include "comm/mesh.h"
#include "layers/layers.h"
#include "tests/test.h"

enum { ONNX_TENSORS = 64, ONNX_NODES = 64, ONNX_PORTS = 16, ONNX_ATTRIBUTES = 16, ONNX_HELD = 256 };

/* A tensor of the file. Dimensions from 2 on are one here where there are more than WF_MAX_RANK, which all cases that
 * have so many treat alike. Exactly one of `real` and `whole` has the elements; none for a type that Weft lacks. */
typedef struct onnx_tensor {
    const char *name, *type; /* type: "f32", ..., "bool", or ONNX's word for one that Weft lacks */
    wf_shape shape;
    double *real;
    int64_t *whole;
} onnx_tensor;

typedef struct onnx_attribute {
    const char *name, *word;   /* word: the text, or the name of a tensor */
    int count;                 /* of the numbers */
    double real[ONNX_TENSORS]; /* numbers, whole ones too */
} onnx_attribute;

typedef struct onnx_node {
    const char *op; /* the operator */
    int n_in, n_out, n_attributes;
    const char *in[ONNX_PORTS], *out[ONNX_PORTS]; /* "-": not given */
    onnx_attribute attribute[ONNX_ATTRIBUTES];
} onnx_node;

typedef struct onnx_case {
    const char *name;
    int version; /* of the set of operators */
    int n_tensors, n_nodes, n_expected;
    onnx_tensor tensor[ONNX_TENSORS], expected[ONNX_PORTS];
    onnx_node node[ONNX_NODES];
} onnx_case;

/* --- onnx_file.c ---------------------------------------------------------------------------------------------------
 */
/* The next case of the text at *at, which is cut into words in place; false at its end. A case that is skipped has its
 * name alone. */
bool onnx_next(char **at, bool skip, onnx_case *c);
void onnx_clear(onnx_case *c); /* frees the elements */

/* --- onnx_call.c: what the functions of the families work with -------------------------------------------------------
 */
typedef struct onnx_run {
    wf_ctx *ctx;
    wf_tape *tape;
    const wf_mesh *mesh; /* NULL: on one rank */
    bool is_cut;         /* an input of a node was in parts */
    int version;
    int n_layers, n_held;
    wf_layer *layer[ONNX_NODES];
    wf_tensor *held[ONNX_HELD];
} onnx_run;

typedef struct onnx_call {
    onnx_run *run;
    const onnx_case *of;
    const onnx_node *node;
    wf_var *in[ONNX_PORTS]; /* NULL: not given */
    wf_var *out[ONNX_PORTS];
} onnx_call;

/* Returns output 0, and puts others into call->out. NULL where Weft cannot say it. */
typedef wf_var *(*onnx_function)(onnx_call *call);

/* How the inputs of an operator may be cut over a mesh. */
typedef enum onnx_cut {
    ONNX_WHOLE = 0, /* not at all */
    ONNX_IMAGES,    /* the first as images are (wf_shard); the function makes the layer of the mesh */
    ONNX_CHANNELS,  /* as ONNX_IMAGES, and along channels */
    ONNX_ELEMENTS,  /* all, along the dimensions of the broadcast result */
    ONNX_FIRST,     /* the first, along its dimensions */
    ONNX_ROWS,      /* rows of the first factor of a product; a third input as the result is */
    ONNX_LINES,     /* the first, along a dimension that is not among the node's axes */
} onnx_cut;

typedef struct onnx_operator {
    const char *name;
    onnx_function function;
    onnx_cut cut;
} onnx_operator;

/* Attributes, or what stands for one that is not there. onnx_ints returns how many there are (0: no such attribute). */
int64_t onnx_int(const onnx_call *call, const char *name, int64_t otherwise);
double onnx_real(const onnx_call *call, const char *name, double otherwise);
bool onnx_word_is(const onnx_call *call, const char *name, const char *word);
int onnx_ints(const onnx_call *call, const char *name, int most, int64_t *to);
const onnx_attribute *onnx_find(const onnx_call *call, const char *name);
const onnx_tensor *onnx_tensor_of(const onnx_case *c, const char *name);

/* The elements of a variable as numbers of 64 bits, freed by the caller. */
double *onnx_numbers(const wf_var *x);
/* The elements of an input that says shapes or indices; how many there are. 0 where it is not given. */
int onnx_read(const onnx_call *call, int port, int most, int64_t *to);
/* The number of an input of one element. */
double onnx_number(const onnx_call *call, int port, double otherwise);

/* The type that holds one of ONNX's, u8 for truth values; WF_DTYPES where there is none. */
wf_dtype onnx_held_type(const char *type);
/* A tensor of the file as a variable; NULL where Weft lacks its type. */
wf_var *onnx_input(onnx_run *run, const onnx_tensor *t);
/* Constants and layers live as long as the case. */
wf_var *onnx_constant(onnx_call *call, wf_dtype dtype, wf_shape shape, const double *value);
/* One number of the type of `like`, which broadcasts with it. */
wf_var *onnx_scalar(onnx_call *call, const wf_var *like, double value);
const wf_tensor *onnx_hold(onnx_call *call, wf_tensor *tensor);
wf_layer *onnx_layer(onnx_call *call, wf_layer *layer);
/* Sets a parameter of a layer; the name of one that is not there is a failed check. */
void onnx_set_param(wf_layer *layer, const char *name, const wf_var *value);

wf_dtype onnx_dtype(const wf_var *x);
int onnx_rank(const wf_var *x);
wf_shape onnx_whole_shape(const wf_var *x); /* of all parts where x is cut */
/* A dimension, counted from the last where it is negative. */
int onnx_axis(const wf_var *x, int64_t axis);
/* x in a float type: itself, or f32 for u8 and f64 for longer integers. */
wf_var *onnx_float(wf_var *x);
/* Casts back to the type of `like`, to the nearest of an integer type. */
wf_var *onnx_like(onnx_call *call, wf_var *x, const wf_var *like);
/* The dimensions of the first input that the node goes over, with its default where it names none; how many. */
int onnx_axes(const onnx_call *call, int axis[WF_MAX_RANK]);
/* Cuts the inputs over the run's mesh as the operator's kind says. onnx_can_cut: true if the mesh has only axes that
 * they can be cut along. */
void onnx_cut_inputs(onnx_call *call, onnx_cut cut);
bool onnx_can_cut(const onnx_case *c, onnx_cut cut, const wf_mesh *mesh);
/* Functions that several families share. */
wf_var *onnx_round(onnx_call *call, wf_var *x);         /* to the nearest, halves to even */
wf_var *onnx_positive(onnx_call *call, wf_var *x);      /* 1 where x > 0, else 0 */
wf_var *onnx_zero(onnx_call *call, wf_var *x);          /* 1 where x = 0, else 0 */
wf_var *onnx_larger(wf_var *a, wf_var *b, double sign); /* the larger, or for -1 the smaller */
/* Entries `index` of a dimension, in their order. */
wf_var *onnx_pick(wf_var *x, int dim, int64_t count, const int64_t *index);

extern const onnx_operator onnx_shapes[], onnx_gathers[], onnx_arithmetic[], onnx_activations[], onnx_reductions[],
    onnx_windows[], onnx_norms[], onnx_losses[], onnx_products[], onnx_recurrent[];

#endif
