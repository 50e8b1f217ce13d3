/* Reads the machine code of kernels: machine_code ARCHITECTURE OBJECT...
 *
 * Prints a line for each kernel of this architecture (90 for sm_90) in objects that nvcc made:
 *
 *     name loads bytes calls instructions
 *
 * `loads` is the largest number of 16-byte loads of global memory that a thread has in flight at a time, where its code
 * is read from the top to the bottom: a load names a scoreboard, and the first instruction that waits for the
 * scoreboard ends the flight of all loads that named it. `bytes` is the same for loads of all sizes. `calls` counts
 * calls, also those of routines that ptxas adds: divisions of 64-bit numbers, roots. NVIDIA documents neither the
 * encoding nor the scoreboards; tests/static/machine_code.cu has kernels whose numbers are known, by which the test
 * checks this program.
 *
 * An instruction has 128 bits: the opcode is the lowest 12, the size of a load bits 73 to 75, and the scoreboard that a
 * result of unknown latency sets bits 110 to 112, those that are waited for bits 116 to 121.
 */
#include <dlfcn.h>
#include <elf.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FATBIN_MAGIC 0xBA55ED50u
enum { KIND_ELF = 2, FLAG_LZ4 = 0x2000, FLAG_ZSTD = 0x8000 };
enum { OP_LOAD = 0x981, OP_CALL_ABSOLUTE = 0x943, OP_CALL_RELATIVE = 0x944, SCOREBOARDS = 6, SIZE_16 = 6 };

/* One entry of a fat binary: header of `head` bytes, then `size` bytes. */
typedef struct entry_head {
    uint16_t kind, version;
    uint32_t head;
    uint64_t size;
    uint32_t compressed, unused, minor_major, arch;
    uint64_t unused2, flags;
} entry_head;

typedef struct fat_head {
    uint32_t magic;
    uint16_t version, head;
    uint64_t size;
} fat_head;

typedef struct flight {
    int loads[SCOREBOARDS], bytes[SCOREBOARDS];
    int most_loads, most_bytes, calls;
} flight;

static uint64_t bits(const uint64_t word[2], int from, int count)
{
    return (word[from / 64] >> (from % 64)) & ((1u << count) - 1);
}

static void step(flight *f, const uint64_t word[2])
{
    static const int sizes[8] = {1, 1, 2, 2, 4, 8, 16, 0};
    const uint64_t op = bits(word, 0, 12), waits = bits(word, 116, 6), sets = bits(word, 110, 3);
    int loads = 0, bytes = 0;
    for (int s = 0; s < SCOREBOARDS; s++)
        if (waits >> s & 1)
            f->loads[s] = f->bytes[s] = 0;
    f->calls += op == OP_CALL_ABSOLUTE || op == OP_CALL_RELATIVE;
    if (op != OP_LOAD || sets >= SCOREBOARDS)
        return;
    f->loads[sets] += bits(word, 73, 3) == SIZE_16;
    f->bytes[sets] += sizes[bits(word, 73, 3)];
    for (int s = 0; s < SCOREBOARDS; s++) {
        loads += f->loads[s];
        bytes += f->bytes[s];
    }
    f->most_loads = loads > f->most_loads ? loads : f->most_loads;
    f->most_bytes = bytes > f->most_bytes ? bytes : f->most_bytes;
}

static void print_kernel(const char *name, const char *code, size_t size)
{
    flight f = {.most_loads = 0};
    for (size_t at = 0; at + 16 <= size; at += 16) {
        uint64_t word[2];
        memcpy(word, code + at, sizeof word);
        step(&f, word);
    }
    printf("%s %d %d %d %zu\n", name, f.most_loads, f.most_bytes, f.calls, size / 16);
}

/* The number of kernels in the program for the device. */
static int read_cubin(const char *cubin, size_t size)
{
    static const char prefix[] = ".text.";
    Elf64_Ehdr head;
    int kernels = 0;
    if (size < sizeof head)
        return 0;
    memcpy(&head, cubin, sizeof head);
    if (head.e_shoff + (uint64_t)head.e_shnum * sizeof(Elf64_Shdr) > size || head.e_shstrndx >= head.e_shnum)
        return 0;
    Elf64_Shdr *const section = malloc(head.e_shnum * sizeof *section);
    if (!section)
        return 0;
    memcpy(section, cubin + head.e_shoff, head.e_shnum * sizeof *section);
    for (int i = 0; i < head.e_shnum; i++) {
        const uint64_t at = section[head.e_shstrndx].sh_offset + section[i].sh_name;
        if (section[i].sh_type != SHT_PROGBITS || at >= size || section[i].sh_offset + section[i].sh_size > size)
            continue;
        const char *const name = cubin + at;
        if (strncmp(name, prefix, sizeof prefix - 1) != 0)
            continue;
        print_kernel(name + sizeof prefix - 1, cubin + section[i].sh_offset, section[i].sh_size);
        kernels++;
    }
    free(section);
    return kernels;
}

/* The code as nvcc -compress-mode=size packs it. The library of zstd, which Debian's own tools need, is opened here
 * because its headers may not be there. */
static int read_zstd(const char *packed, size_t size)
{
    void *const library = dlopen("libzstd.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "machine_code: the code is compressed, and there is no libzstd.so.1\n");
        return 0;
    }
    unsigned long long (*content)(const void *, size_t) = NULL;
    size_t (*frame)(const void *, size_t) = NULL, (*unpack)(void *, size_t, const void *, size_t) = NULL;
    *(void **)&content = dlsym(library, "ZSTD_getFrameContentSize");
    *(void **)&frame = dlsym(library, "ZSTD_findFrameCompressedSize");
    *(void **)&unpack = dlsym(library, "ZSTD_decompress");
    if (!content || !frame || !unpack)
        return 0;
    const unsigned long long bytes = content(packed, size);
    const size_t used = frame(packed, size);
    char *const cubin = bytes < (1ull << 30) && used <= size ? malloc(bytes) : NULL;
    const int kernels = cubin && unpack(cubin, bytes, packed, used) == bytes ? read_cubin(cubin, bytes) : 0;
    free(cubin);
    return kernels;
}

static int read_fat(const char *data, size_t size, uint32_t arch)
{
    int kernels = 0;
    for (size_t at = 0; at + sizeof(entry_head) <= size;) {
        entry_head e;
        memcpy(&e, data + at, sizeof e);
        if (e.head < sizeof e || e.size > size || at + e.head + e.size > size)
            break;
        if (e.kind == KIND_ELF && e.arch == arch) {
            if (e.flags & FLAG_LZ4)
                fprintf(stderr, "machine_code: the code is compressed by LZ4\n");
            else if (e.flags & FLAG_ZSTD)
                kernels += read_zstd(data + at + e.head, e.size);
            else
                kernels += read_cubin(data + at + e.head, e.size);
        }
        at += e.head + e.size;
    }
    return kernels;
}

static char *read_file(const char *path, size_t *size)
{
    FILE *const file = fopen(path, "rb");
    char *data = NULL;
    if (!file)
        return NULL;
    if (fseek(file, 0, SEEK_END) == 0 && (*size = (size_t)ftell(file)) > 0 && (data = malloc(*size))) {
        rewind(file);
        if (fread(data, 1, *size, file) != *size) {
            free(data);
            data = NULL;
        }
    }
    fclose(file);
    return data;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: machine_code ARCHITECTURE OBJECT...\n");
        return 2;
    }
    for (int i = 2; i < argc; i++) {
        size_t size = 0;
        int kernels = 0;
        char *const data = read_file(argv[i], &size);
        for (size_t at = 0; data && at + sizeof(fat_head) <= size; at += 8) {
            fat_head head;
            memcpy(&head, data + at, sizeof head);
            if (head.magic == FATBIN_MAGIC && head.head >= sizeof head && at + head.head + head.size <= size)
                kernels += read_fat(data + at + head.head, head.size, (uint32_t)atoi(argv[1]));
        }
        free(data);
        if (kernels == 0) {
            fprintf(stderr, "machine_code: %s has no code for sm_%s\n", argv[i], argv[1]);
            return 1;
        }
    }
    return 0;
}
