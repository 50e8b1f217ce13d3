/* strtol and strtod would take "-1", " 1", "+1", "0x10", "1e400" and "inf", and say of a number that is too large that
 * it is another one. */
#include "tools/number.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS "0123456789"

const number_unit number_bytes[] = {{"", 1},     {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
                                    {"KB", 1e3}, {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},    {0}};

bool number_next(const char **text, int64_t least, int64_t most, int64_t *value)
{
    const size_t digits = strspn(*text, DIGITS);
    int64_t number = 0;
    for (size_t i = 0; i < digits; i++) {
        const int64_t digit = (*text)[i] - '0';
        if (number > (INT64_MAX - digit) / 10)
            return false;
        number = 10 * number + digit;
    }
    if (digits == 0 || number < least || number > most)
        return false;
    *value = number;
    *text += digits;
    return true;
}

bool number_whole(const char *text, int64_t least, int64_t most, int64_t *value)
{
    int64_t number;
    if (!number_next(&text, least, most, &number) || *text)
        return false;
    *value = number;
    return true;
}

double number_amount(const char *text, const number_unit *units)
{
    size_t length = strspn(text, DIGITS);
    if (length == 0)
        return 0;
    if (text[length] == '.')
        length += 1 + strspn(text + length + 1, DIGITS);
    const double number =
        strtod(text, NULL); /* stops where the digits end, or at a unit: none begins like an exponent */
    for (const number_unit *unit = units; unit->name; unit++)
        if (strcmp(unit->name, text + length) == 0)
            return isfinite(number * unit->factor) ? number * unit->factor : 0;
    return 0;
}
