/* Strings of JSON, for the trainer's log, the profiler's time line, plan files and the lines of a study. */
#include "optim/json_impl.h"

#include <stdlib.h>
#include <string.h>

/* The bytes that the first one of a character of UTF-8 announces; 0 where none begins so. */
static int announced(unsigned char first)
{
    return first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
}

/* The length of the character of UTF-8 that begins here; 0 where none does. */
static int character_length(const unsigned char *c)
{
    const int length = announced(*c);
    for (int i = 1; i < length; i++)
        if ((c[i] & 0xc0) != 0x80)
            return 0;
    /* Longer forms than are needed, halves of pairs of UTF-16, and what is beyond Unicode. */
    if ((*c == 0xe0 && c[1] < 0xa0) || (*c == 0xed && c[1] > 0x9f) || (*c == 0xf0 && c[1] < 0x90) ||
        (*c == 0xf4 && c[1] > 0x8f))
        return 0;
    return length;
}

bool wf_json_is_utf8(const char *text)
{
    const unsigned char *c = (const unsigned char *)text;
    for (int length; *c; c += length)
        if (!(length = character_length(c)))
            return false;
    return true;
}

void wf_json_text(FILE *file, const char *text)
{
    const unsigned char *c = (const unsigned char *)text;
    fputc('"', file);
    while (*c) {
        const int length = character_length(c);
        if (*c == '"' || *c == '\\')
            fprintf(file, "\\%c", *c);
        else if (*c < 32)
            fprintf(file, "\\u%04x", *c);
        else if (length)
            fwrite(c, 1, (size_t)length, file);
        else
            fputs("\\ufffd", file);
        c += length ? length : 1;
    }
    fputc('"', file);
}

/* The character that \u00XX, \n, \" and the like stand for; the place behind it. */
static const char *unescape(const char *from, char *to)
{
    static const char *const letters = "\"\\/bfnrt", *const meanings = "\"\\/\b\f\n\r\t";
    const char *letter = *from ? strchr(letters, *from) : NULL;
    if (letter) {
        *to = meanings[letter - letters];
        return from + 1;
    }
    char digits[5] = "";
    strncpy(digits, from + 1, 4);
    char *end;
    const long code = strtol(digits, &end, 16);
    /* Python writes everything above as UTF-8. */
    if (*from != 'u' || end != digits + 4 || code < 1 || code > 127)
        return NULL;
    *to = (char)code;
    return from + 5;
}

const char *wf_json_string(const char *from, char **to)
{
    if (*from++ != '"')
        return NULL;
    while (*from != '"') {
        if ((unsigned char)*from < 32)
            return NULL;
        if (*from == '\\')
            from = unescape(from + 1, *to);
        else
            **to = *from++;
        if (!from)
            return NULL;
        ++*to;
    }
    *(*to)++ = '\0';
    return from + 1;
}
