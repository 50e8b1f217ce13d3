/* Numbers in the options of the tools. Only digits count: no sign, no space, no exponent, no number that does not fit.
 */
#ifndef WF_TOOLS_NUMBER_H
#define WF_TOOLS_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

typedef struct number_unit {
    const char *name; /* NULL ends a list */
    double factor;
} number_unit;

/* "", KiB to TiB, KB to TB. */
extern const number_unit number_bytes[];

/* Reads the digits at *text as a number in [least, most], and moves *text behind them. False if they are none. */
bool number_next(const char **text, int64_t least, int64_t most, int64_t *value);
/* Reads a text that is nothing but such a number. */
bool number_whole(const char *text, int64_t least, int64_t most, int64_t *value);
/* "1.5GiB": a positive number, also a decimal fraction, and one of the units. Returns 0 for anything else. */
double number_amount(const char *text, const number_unit *units);

#endif
