/* JSON for files that this folder writes. */
#ifndef WF_OPTIM_JSON_IMPL_H
#define WF_OPTIM_JSON_IMPL_H

#include <stdio.h>

/* The text as a string of JSON, with its quotes. */
void wf_json_text(FILE *file, const char *text);

#endif
