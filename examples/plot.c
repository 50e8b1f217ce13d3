/* Curves of a run as a gnuplot script and its picture. A missing gnuplot is no failure of the training. */
#include "examples/plot.h"

#include "examples/common.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

void curves_add(curves *c, double x, const double y[CURVES])
{
    if (c->count == c->capacity) {
        c->capacity = c->capacity ? 2 * c->capacity : 256;
        c->point = realloc(c->point, (size_t)c->capacity * sizeof *c->point);
        if (!c->point)
            example_abort("out of memory for the curves");
    }
    c->point[c->count][0] = x;
    memcpy(&c->point[c->count++][1], y, CURVES * sizeof *y);
}

void curves_free(curves *c)
{
    free(c->point);
    c->point = NULL;
    c->count = c->capacity = 0;
}

static void write_script(const curves *c, const char *path)
{
    FILE *file = fopen(path, "w");
    if (!file)
        example_abort("%s: cannot write: %s", path, strerror(errno));
    fprintf(file, "$points << END\n");
    for (int64_t i = 0; i < c->count; i++)
        fprintf(file, "%g %g %g\n", c->point[i][0], c->point[i][1], c->point[i][2]);
    fprintf(file,
            "END\nset terminal svg size 800,480 background 'white'\nset grid\nset xlabel '%s'\nset ylabel 'loss'\n"
            "plot $points using 1:2 with lines title '%s', $points using 1:3 with lines title '%s'\n",
            c->x_name, c->name[0], c->name[1]);
    if (fclose(file) != 0)
        example_abort("%s: cannot write: %s", path, strerror(errno));
}

/* gnuplot SCRIPT > PICTURE */
static int run_gnuplot(const char *script, const char *picture)
{
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, picture, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    char *const argv[] = {(char[]){"gnuplot"}, strdup(script), NULL};
    pid_t child;
    int code = posix_spawnp(&child, argv[0], &files, NULL, argv, environ);
    if (code == 0 && waitpid(child, &code, 0) != child)
        code = -1;
    free(argv[1]);
    posix_spawn_file_actions_destroy(&files);
    return code == 0 ? 0 : -1;
}

int script_draw(const char *script, const char *picture)
{
    char draft[4200];
    snprintf(draft, sizeof draft, "%s.tmp", picture);
    if (run_gnuplot(script, draft) == 0 && rename(draft, picture) == 0)
        return 0;
    unlink(draft);
    return -1;
}

int curves_draw(const curves *c, const char *script, const char *picture)
{
    write_script(c, script);
    return script_draw(script, picture);
}
