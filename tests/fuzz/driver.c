/* Runs a fuzz target where there is no libFuzzer: fuzz_NAME CORPUS RUNS. Every file of the folder CORPUS, then RUNS
 * random changes of them, the same at every start. */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>

enum { MOST = 1 << 16, FILES = 64 };

typedef struct text {
    uint8_t data[MOST];
    size_t bytes;
} text;

static text *corpus[FILES];
static int files;
static uint64_t state = 88172645463325252u;

static uint64_t below(uint64_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 11) % n;
}

static int read_corpus(const char *folder)
{
    struct dirent **entry;
    const int n = scandir(folder, &entry, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, entry[i]->d_name);
        FILE *file = *entry[i]->d_name != '.' && files < FILES ? fopen(path, "rb") : NULL;
        free(entry[i]);
        if (!file)
            continue;
        corpus[files] = malloc(sizeof **corpus);
        fuzz_need(corpus[files] != NULL, "no memory");
        corpus[files]->bytes = fread(corpus[files]->data, 1, MOST, file);
        files++;
        fclose(file);
    }
    free(n >= 0 ? entry : NULL);
    return files;
}

/* A part goes, is doubled, or comes from another file. */
static void change_length(text *t)
{
    const text *other = corpus[below((uint64_t)files)];
    const size_t at = below(t->bytes), n = 1 + below(t->bytes - at);
    const uint64_t how = below(4);
    if (how == 0) {
        memmove(t->data + at, t->data + at + n, t->bytes - at - n);
        t->bytes -= n;
    } else if (how == 1) {
        t->bytes = at;
    } else if (how == 2 && t->bytes + n <= MOST) {
        memmove(t->data + at + n, t->data + at, t->bytes - at);
        t->bytes += n;
    } else if (other->bytes > 0) {
        const size_t from = below(other->bytes), most = other->bytes - from < n ? other->bytes - from : n;
        memcpy(t->data + at, other->data + from, most);
    }
}

static void change_byte(text *t)
{
    static const uint8_t odd[] = {0, 1, 0x7F, 0x80, 0xFF, 0xFE, 0x10, 0x40};
    uint8_t *byte = &t->data[below(below(2) ? t->bytes : t->bytes < 64 ? t->bytes : 64)];
    const uint64_t how = below(4);
    if (how == 0)
        *byte ^= (uint8_t)(1u << below(8));
    else if (how == 1)
        *byte = odd[below(sizeof odd)];
    else
        *byte = how == 2 ? (uint8_t)below(256) : (uint8_t)(*byte + below(5) - 2);
}

int main(int argc, char **argv)
{
    static text t;
    if (argc != 3 || read_corpus(argv[1]) == 0) {
        fprintf(stderr, "usage: %s CORPUS RUNS, with files in CORPUS\n", argv[0]);
        return 2;
    }
    const long runs = strtol(argv[2], NULL, 10);
    for (long i = 0; i < runs + files; i++) {
        t = *corpus[i < files ? (uint64_t)i : below((uint64_t)files)];
        for (uint64_t k = i < files ? 0 : 1 + below(6); k > 0 && t.bytes > 0; k--)
            if (below(4) == 0)
                change_length(&t);
            else
                change_byte(&t);
        uint8_t *exact = malloc(t.bytes + !t.bytes); /* the sanitizer sees a byte too many */
        fuzz_need(exact != NULL, "no memory");
        memcpy(exact, t.data, t.bytes);
        LLVMFuzzerTestOneInput(exact, t.bytes);
        free(exact);
    }
    printf("%d files of the corpus and %ld changes of them\n", files, runs);
    for (int i = 0; i < files; i++)
        free(corpus[i]);
    return 0;
}
