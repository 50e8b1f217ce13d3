/* Reads the file of onnx_cases.py, word by word. */
#include "tests/outside/onnx.h"

#include <stdlib.h>
#include <string.h>

/* Cuts the next word off the text. "" at its end. */
static char *cut_word(char **at)
{
    char *word = *at + strspn(*at, " \n");
    char *end = word + strcspn(word, " \n");
    *at = *end ? end + 1 : end;
    *end = 0;
    return word;
}

static int64_t cut_whole(char **at)
{
    return strtoll(cut_word(at), NULL, 10);
}

static bool is_real(const char *type)
{
    return strcmp(type, "f32") == 0 || strcmp(type, "f64") == 0 || strcmp(type, "f16") == 0 ||
           strcmp(type, "bf16") == 0;
}

static bool is_whole(const char *type)
{
    return strcmp(type, "i32") == 0 || strcmp(type, "i64") == 0 || strcmp(type, "u8") == 0 || strcmp(type, "bool") == 0;
}

static void read_tensor(char **at, onnx_tensor *t)
{
    t->name = cut_word(at);
    t->type = cut_word(at);
    const int rank = (int)cut_whole(at);
    int64_t count = 1;
    t->shape = wf_shape_make(rank > WF_MAX_RANK ? 3 : rank, (int64_t[WF_MAX_RANK]){1, 1, 1, 1, 1, 1});
    for (int d = 0; d < rank; d++) {
        const int64_t length = cut_whole(at);
        t->shape.dim[d < 2 || rank <= WF_MAX_RANK ? d : 2] *= length;
        count *= length;
    }
    const size_t bytes = (size_t)(count + 1) * sizeof(double);
    if (is_real(t->type)) {
        t->real = malloc(bytes);
        for (int64_t i = 0; i < count; i++)
            t->real[i] = strtod(cut_word(at), NULL);
    } else if (is_whole(t->type)) {
        t->whole = malloc(bytes);
        for (int64_t i = 0; i < count; i++)
            t->whole[i] = cut_whole(at);
    }
}

static void read_attribute(char **at, onnx_attribute *a)
{
    a->name = cut_word(at);
    const char *kind = cut_word(at);
    if (strcmp(kind, "ints") != 0 && strcmp(kind, "floats") != 0) {
        a->word = cut_word(at);
        return;
    }
    a->count = (int)cut_whole(at);
    for (int i = 0; i < a->count; i++) {
        const double number = strtod(cut_word(at), NULL);
        if (i < ONNX_TENSORS)
            a->real[i] = number;
    }
    WF_EXPECT(a->count <= ONNX_TENSORS, "attribute %s has %d numbers", a->name, a->count);
}

static void read_node(char **at, onnx_node *n)
{
    n->op = cut_word(at);
    n->n_in = (int)cut_whole(at);
    for (int i = 0; i < n->n_in; i++)
        n->in[i] = cut_word(at);
    n->n_out = (int)cut_whole(at);
    for (int i = 0; i < n->n_out; i++)
        n->out[i] = cut_word(at);
    n->n_attributes = (int)cut_whole(at);
    for (int i = 0; i < n->n_attributes; i++)
        read_attribute(at, &n->attribute[i]);
}

bool onnx_next(char **at, bool skip, onnx_case *c)
{
    memset(c, 0, sizeof *c);
    if (strcmp(cut_word(at), "case") != 0)
        return false;
    c->name = cut_word(at);
    c->version = (int)cut_whole(at);
    if (skip) {
        char *end = strstr(*at, "\nend\n");
        *at = end ? end + 5 : *at + strlen(*at);
        return true;
    }
    for (const char *word = cut_word(at); strcmp(word, "end") != 0; word = cut_word(at)) {
        if (strcmp(word, "tensor") == 0 && c->n_tensors < ONNX_TENSORS)
            read_tensor(at, &c->tensor[c->n_tensors++]);
        else if (strcmp(word, "expect") == 0 && c->n_expected < ONNX_PORTS)
            read_tensor(at, &c->expected[c->n_expected++]);
        else if (strcmp(word, "node") == 0 && c->n_nodes < ONNX_NODES)
            read_node(at, &c->node[c->n_nodes++]);
        else {
            WF_EXPECT(false, "%s: the word \"%s\" stands where an input, a node or an output should", c->name, word);
            return false;
        }
    }
    return true;
}

void onnx_clear(onnx_case *c)
{
    for (int i = 0; i < c->n_tensors; i++) {
        free(c->tensor[i].real);
        free(c->tensor[i].whole);
    }
    for (int i = 0; i < c->n_expected; i++) {
        free(c->expected[i].real);
        free(c->expected[i].whole);
    }
}
