/* JSON for files that this folder writes. */
#ifndef WF_OPTIM_JSON_IMPL_H
#define WF_OPTIM_JSON_IMPL_H

#include <stdbool.h>
#include <stdio.h>

/* The text as a string of JSON, with its quotes. A byte that is no UTF-8 becomes the replacement character, U+FFFD. */
void wf_json_text(FILE *file, const char *text);
bool wf_json_is_utf8(const char *text);

#endif
