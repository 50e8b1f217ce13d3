/* Strings of JSON for what this folder writes and reads. */
#ifndef WF_OPTIM_JSON_IMPL_H
#define WF_OPTIM_JSON_IMPL_H

#include <stdbool.h>
#include <stdio.h>

/* The text as a string of JSON, with its quotes. A byte that is no UTF-8 becomes the replacement character, U+FFFD. */
void wf_json_text(FILE *file, const char *text);
bool wf_json_is_utf8(const char *text);
/* Reads a string, from its first quote on: unescaped to *to, which may be the same memory and moves behind its end.
 * Returns the place behind the string; NULL where it does not end, or has an escape that is not known. */
const char *wf_json_string(const char *from, char **to);

#endif
