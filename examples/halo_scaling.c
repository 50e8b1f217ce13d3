/* What halos cost: spatially parallel convolutions against serial ones, over image sizes, channels, kernels and grids
 * of the ranks, with a fixed image (strong scaling) and a fixed part for each rank (weak).
 *
 *     mpirun -np 2 halo_scaling --out study
 *
 * study/halo-2.csv has all numbers, study/halo.svg shows them with those of other numbers of ranks in the same folder.
 * From the exchanges come the seconds of a message (alpha) and of a byte (beta), and from these 1024 ranks are
 * extrapolated, where ranks do not share cores.
 */
#include "examples/halo_measure.h"
#include "examples/halo_plots.h"

#include <stdlib.h>
#include <unistd.h>

#define MOST     8
#define GRIDS    2 /* that a number of ranks is measured on */
#define FARTHEST 1024

typedef struct settings {
    const char *sizes, *channels, *kernels, *out;
    int64_t repeat, threads;
    bool quick;
} settings;

typedef struct list {
    int count;
    int64_t value[MOST];
} list;

typedef struct study {
    list sizes, channels, kernels;
    int64_t count;
    halo_row *row;
    halo_cost cost;
} study;

static settings read_settings(int argc, char **argv)
{
    settings s = {
        .sizes = "64,128,256", .channels = "16,32", .kernels = "3,5", .out = "scaling", .repeat = 7, .threads = 1};
    const example_option table[] = {
        {"sizes", "N,N", "height and width of the images, or of a rank's part (weak scaling)", .text = &s.sizes},
        {"channels", "N,N", "channels in and out", .text = &s.channels},
        {"kernels", "N,N", "height and width of the kernels", .text = &s.kernels},
        {"out", "DIR", "folder of the results", .text = &s.out},
        {"repeat", "N", "runs of which the median counts", .number = &s.repeat, .most = 1000000, .least = 1},
        {"threads", "N", "of each rank", .number = &s.threads, .most = 1024, .least = 1},
        {"quick", NULL, "small images, few repeats", .flag = &s.quick},
        {0}};
    example_options(argc, argv, "Measures spatially parallel convolution on the ranks of mpirun.", table);
    if (s.quick) {
        s.sizes = "24,33";
        s.channels = "4";
        s.kernels = "3,4";
        s.repeat = 2;
    }
    return s;
}

/* "64,128": at most MOST whole numbers from `least` on. */
static list read_list(wf_comm *comm, const char *option, const char *text, int64_t least)
{
    list l = {0};
    char complaint[256], *end = (char *)text;
    for (const char *at = text; l.count < MOST; at = end + 1) {
        const int64_t value = strtoll(at, &end, 10);
        if (end == at || value < least || value > 1 << 16 || (*end && *end != ','))
            break;
        l.value[l.count++] = value;
        if (!*end)
            return l;
    }
    snprintf(complaint, sizeof complaint, "--%s %s: should be up to %d numbers from %lld to %d, as 64,128", option,
             text, MOST, (long long)least, 1 << 16);
    example_agree(comm, complaint);
    return l;
}

static void measure_grid(wf_comm *comm, study *s, halo_case c, int64_t repeats)
{
    for (int i = 0; i < 2; i++)
        c.length[i] = c.weak ? c.size * c.ranks[i] : c.size;
    const halo_row *r = &s->row[s->count];
    s->row[s->count++] = halo_measure(comm, &c, repeats);
    if (wf_comm_rank(comm) != 0)
        return;
    printf("%-6s %dx%d  %4lld^2  %3lld channels  kernel %lld  compute %8.3f ms  exchange %7.3f ms  exposed %7.3f ms  "
           "layer %8.3f ms  efficiency %.2f  with backward %.2f  %lld bytes, %s\n",
           c.weak ? "weak" : "strong", c.ranks[0], c.ranks[1], (long long)c.size, (long long)c.channels,
           (long long)c.kernel, 1e3 * r->compute[FORWARD], 1e3 * r->exchange, 1e3 * r->exposed[FORWARD],
           1e3 * r->spatial[FORWARD], r->share[FORWARD] / r->spatial[FORWARD], r->share[BOTH] / r->spatial[BOTH],
           (long long)r->bytes[BOTH], r->off ? "NOT those of the formula" : "as the formula says");
}

/* Rows of ranks, and the squarest grid. */
static void measure_grids(wf_comm *comm, study *s, halo_case c, int64_t repeats)
{
    c.ranks[0] = wf_comm_size(comm);
    c.ranks[1] = 1;
    measure_grid(comm, s, c, repeats);
    halo_grid(wf_comm_size(comm), c.ranks);
    if (wf_comm_size(comm) > 1)
        measure_grid(comm, s, c, repeats);
}

static void measure_all(wf_comm *comm, study *s, int64_t repeats)
{
    s->row = calloc(4 * MOST * MOST * MOST, sizeof *s->row);
    if (!s->row)
        example_abort("out of memory for the results");
    for (int weak = 0; weak < 2; weak++)
        for (int i = 0; i < s->sizes.count; i++)
            for (int j = 0; j < s->channels.count; j++)
                for (int k = 0; k < s->kernels.count; k++)
                    measure_grids(comm, s,
                                  (halo_case){.weak = weak,
                                              .size = s->sizes.value[i],
                                              .channels = s->channels.value[j],
                                              .kernel = s->kernels.value[k]},
                                  repeats);
}

/* Adds what a row measured on its grid, of which the least counts. */
static int64_t add_shortest(halo_sample *shortest, int *along, int64_t count, const halo_row *r)
{
    int64_t i = 0;
    while (i < count && along[i] != r->what.ranks[0])
        i++;
    if (i < count && shortest[i].seconds <= r->shortest)
        return count;
    along[i] = r->what.ranks[0];
    shortest[i] = (halo_sample){(double)r->busiest_shortest.messages, (double)r->busiest_shortest.bytes, r->shortest};
    return i < count ? count : count + 1;
}

static void fit(study *s)
{
    halo_sample *sample = calloc((size_t)s->count, sizeof *sample), shortest[GRIDS];
    int along[GRIDS] = {0};
    int64_t shortests = 0;
    if (!sample)
        example_abort("out of memory for the fit");
    for (int64_t i = 0; i < s->count; i++) {
        const halo_row *r = &s->row[i];
        sample[i] = (halo_sample){(double)r->busiest.messages, (double)r->busiest.bytes, r->exchange};
        shortests = add_shortest(shortest, along, shortests, r);
    }
    s->cost = halo_fit(shortest, shortests, sample, s->count);
    free(sample);
}

static void write_rows(FILE *csv, const study *s, bool cores_shared)
{
    fprintf(csv, "mode,ranks,rows,columns,size,channels,kernel,height,width,compute_s,exchange_s,predicted_s,spatial_s,"
                 "exposed_s,speedup,efficiency,compute_both_s,spatial_both_s,exposed_both_s,speedup_both,"
                 "efficiency_both,busiest_messages,busiest_bytes,bytes,formula,bytes_both,formula_both,ranks_off,cores_"
                 "shared\n");
    for (int64_t i = 0; i < s->count; i++) {
        const halo_row *r = &s->row[i];
        const halo_case *c = &r->what;
        const int ranks = c->ranks[0] * c->ranks[1];
        const double gain = r->share[FORWARD] / r->spatial[FORWARD], gain_both = r->share[BOTH] / r->spatial[BOTH];
        fprintf(csv, "%s,%d,%d,%d,%lld,%lld,%lld,%lld,%lld,%.4g,%.4g,", c->weak ? "weak" : "strong", ranks, c->ranks[0],
                c->ranks[1], (long long)c->size, (long long)c->channels, (long long)c->kernel, (long long)c->length[0],
                (long long)c->length[1], r->compute[FORWARD], r->exchange);
        if (s->cost.known)
            fprintf(csv, "%.4g", halo_predict(&s->cost, r->busiest));
        fprintf(csv, ",%.4g,%.4g,%.4g,%.4g,%.4g,%.4g,%.4g,%.4g,%.4g,", r->spatial[FORWARD], r->exposed[FORWARD],
                gain * ranks, gain, r->compute[BOTH], r->spatial[BOTH], r->exposed[BOTH], gain_both * ranks, gain_both);
        fprintf(csv, "%lld,%lld,%lld,%lld,%lld,%lld,%lld,%d\n", (long long)r->busiest.messages,
                (long long)r->busiest.bytes, (long long)r->bytes[FORWARD], (long long)r->formula[FORWARD],
                (long long)r->bytes[BOTH], (long long)r->formula[BOTH], (long long)r->off, cores_shared);
    }
}

static void compare(const study *s)
{
    printf("message: alpha %.3g s, byte: beta %.3g s (%.2f GB/s)\nexchange, predicted against measured:\n",
           s->cost.alpha, s->cost.beta, s->cost.beta > 0 ? 1e-9 / s->cost.beta : 0);
    for (int64_t i = 0; i < s->count; i++) {
        const halo_row *r = &s->row[i];
        const double predicted = halo_predict(&s->cost, r->busiest);
        printf("  %dx%d  %lld messages  %8lld bytes  %9.1f us  %9.1f us  %+.0f %%\n", r->what.ranks[0],
               r->what.ranks[1], (long long)r->busiest.messages, (long long)r->busiest.bytes, 1e6 * predicted,
               1e6 * r->exchange, 100 * (predicted / r->exchange - 1));
    }
}

/* The last strong row has the largest image, the last weak one the largest part: forward, on more ranks. */
static void extrapolate(FILE *csv, const study *s)
{
    fprintf(csv, "mode,ranks,rows,columns,size,channels,kernel,compute_s,exchange_s,hidden,exposed\n");
    const halo_case *last = &s->row[s->count - 1].what;
    printf(
        "EXTRAPOLATED, not measured, by this compute, alpha and beta, %lld channels, kernel %lld (efficiency with the "
        "exchange wholly hidden behind the convolution, and not at all):\n",
        (long long)last->channels, (long long)last->kernel);
    for (int weak = 0; weak < 2; weak++) {
        const halo_row *r = &s->row[weak ? s->count - 1 : s->count / 2 - 1];
        const double each = r->compute[FORWARD] / (double)halo_most_outputs(&r->what);
        for (int ranks = 2; ranks <= FARTHEST; ranks *= 2) {
            halo_case c = r->what;
            halo_grid(ranks, c.ranks);
            for (int i = 0; i < 2; i++)
                c.length[i] = weak ? c.size * c.ranks[i] : c.size;
            const double compute = each * (double)halo_most_outputs(&c);
            const double exchange = halo_predict(&s->cost, halo_busiest(&c));
            const double share = each * (double)(c.length[0] * c.length[1]) / ranks;
            const double hidden = share / (compute > exchange ? compute : exchange),
                         shown = share / (compute + exchange);
            const char *mode = weak ? "weak" : "strong";
            fprintf(csv, "%s,%d,%d,%d,%lld,%lld,%lld,%.4g,%.4g,%.4g,%.4g\n", mode, ranks, c.ranks[0], c.ranks[1],
                    (long long)c.size, (long long)c.channels, (long long)c.kernel, compute, exchange, hidden, shown);
            printf("  %-6s %4d ranks  %lldx%lld  compute %8.3f ms  exchange %7.3f ms  efficiency %.2f, %.2f\n", mode,
                   ranks, (long long)c.length[0], (long long)c.length[1], 1e3 * compute, 1e3 * exchange, hidden, shown);
        }
    }
}

static void close_file(FILE *file)
{
    if (file && fclose(file) != 0)
        example_abort("cannot write the results");
}

static bool cores_shared(const wf_comm *comm, int64_t threads)
{
    return wf_comm_intra_size(comm) * threads > sysconf(_SC_NPROCESSORS_ONLN);
}

/* Times of ranks that wait for a core say nothing about messages. */
static void model(wf_comm *comm, study *s, const settings *chosen)
{
    const int ranks = wf_comm_size(comm);
    if (ranks > 1 && !cores_shared(comm, chosen->threads))
        fit(s);
    if (s->cost.known) {
        FILE *csv = example_create(comm, chosen->out, "extrapolation.csv");
        if (csv) {
            compare(s);
            extrapolate(csv, s);
        }
        close_file(csv);
    } else if (wf_comm_rank(comm) == 0)
        printf("no times are predicted: %s\n", ranks == 1 ? "one rank sends nothing" : "the ranks share cores");
}

int main(int argc, char **argv)
{
    const settings chosen = read_settings(argc, argv);
    wf_comm *comm = wf_comm_open(&argc, &argv, "auto", (wf_ctx_opts){.threads = (int)chosen.threads});
    example_check(comm, wf_check(comm));
    study s = {.sizes = read_list(comm, "sizes", chosen.sizes, wf_comm_size(comm)),
               .channels = read_list(comm, "channels", chosen.channels, 1),
               .kernels = read_list(comm, "kernels", chosen.kernels, 1)};
    char name[64];
    snprintf(name, sizeof name, "halo-%d.csv", wf_comm_size(comm));
    FILE *csv = example_create(comm, chosen.out, name);
    measure_all(comm, &s, chosen.repeat);
    model(comm, &s, &chosen);
    if (csv) {
        write_rows(csv, &s, cores_shared(comm, chosen.threads));
        close_file(csv);
        const bool drawn = halo_plots(chosen.out) == 0;
        printf("look at %s and %s\n", example_path(chosen.out, name),
               example_path(chosen.out, drawn ? "halo.svg" : "halo.gnuplot"));
    }
    int64_t off = 0;
    for (int64_t i = 0; i < s.count; i++)
        off += s.row[i].off;
    free(s.row);
    WF_MUST(wf_comm_close(comm));
    return off ? EXIT_FAILURE : EXIT_SUCCESS;
}
