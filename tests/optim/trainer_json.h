/* Checks that a line is a flat JSON object of numbers and nulls. */
#ifndef WF_TESTS_OPTIM_TRAINER_JSON_H
#define WF_TESTS_OPTIM_TRAINER_JSON_H

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

static inline bool json_string(const char **at)
{
    const char *c = *at;
    if (*c++ != '"')
        return false;
    for (; *c != '"'; c++) {
        if ((unsigned char)*c < 32)
            return false;
        if (*c != '\\')
            continue;
        if (!*++c || !strchr("\"\\/bfnrtu", *c))
            return false;
        for (int i = 0; *c == 'u' && i < 4; i++)
            if (!isxdigit((unsigned char)c[1 + i]))
                return false;
    }
    *at = c + 1;
    return true;
}

static inline const char *json_digits(const char *c)
{
    while (isdigit((unsigned char)*c))
        c++;
    return c;
}

static inline bool json_value(const char **at)
{
    if (strncmp(*at, "null", 4) == 0) {
        *at += 4;
        return true;
    }
    const char *c = **at == '-' ? *at + 1 : *at, *end = json_digits(c);
    if (end == c || (*c == '0' && end > c + 1))
        return false;
    if (*end == '.') {
        c = end + 1;
        end = json_digits(c);
    }
    if (end > c && *end == 'e') {
        c = end + 1 + (end[1] == '-' || end[1] == '+');
        end = json_digits(c);
    }
    if (end == c)
        return false;
    *at = end;
    return true;
}

static inline bool json_is_object(const char *line)
{
    if (*line++ != '{')
        return false;
    while (json_string(&line)) {
        if (strncmp(line, ": ", 2) != 0)
            return false;
        line += 2;
        if (!json_value(&line))
            return false;
        if (strncmp(line, ", ", 2) != 0)
            return strcmp(line, "}") == 0;
        line += 2;
    }
    return false;
}

#endif
