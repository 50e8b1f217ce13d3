/* What this process says on stderr, for tests of warnings. */
#ifndef WF_TESTS_FILE_SAID_H
#define WF_TESTS_FILE_SAID_H

#include "core/log.h"
#include "tests/test.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int said_before;
static FILE *said_file;

/* From here on, until said_end. */
static inline void said_begin(void)
{
    said_file = tmpfile();
    said_before = dup(STDERR_FILENO);
    WF_EXPECT(said_file && said_before >= 0 && dup2(fileno(said_file), STDERR_FILENO) >= 0, "cannot listen");
    wf_log_set_level(WF_LOG_WARN);
}

/* Returns how many lines have this text. */
static inline int said_end(const char *text)
{
    char line[1024];
    int n = 0;
    dup2(said_before, STDERR_FILENO);
    close(said_before);
    wf_log_set_level(WF_LOG_INFO);
    rewind(said_file);
    while (fgets(line, sizeof line, said_file))
        n += strstr(line, text) != NULL;
    fclose(said_file);
    return n;
}

#endif
