/* Lines of the library to stderr, by level. Never to stdout, which belongs to the program. */
#include "core/log.h"

#include "core/config_author.h"

#include <stdarg.h>
#include <stdio.h>

static int level_set = -1;

void wf_log_set_level(wf_log_level level)
{
    level_set = (int)level;
}

void wf_log_write(wf_log_level level, const char *format, ...)
{
    /* While the configuration is being read (a warning about a variable), everything is shown. */
    static int depth;
    int most = level_set;
    if (most < 0 && depth == 0) {
        depth = 1;
        most = wf_config_get()->log_level;
        depth = 0;
    }
    if (most >= 0 && (int)level > most)
        return;
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    /* One call, so that lines of several ranks on one terminal do not mix. */
    fprintf(stderr, "weft: %s\n", text);
}
