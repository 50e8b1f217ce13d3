/* Options: a struct by value whose zero fields mean the default. */
#ifndef WF_CORE_OPTS_H
#define WF_CORE_OPTS_H

/* Put this into a field whose default is not 0 to set the field to zero. */
#define WF_ZERO (-0x1p-1000)

/* The value of an option: its default where the field is 0, 0 where it is WF_ZERO. */
static inline double wf_opt(double field, double otherwise)
{
    return field == WF_ZERO ? 0.0 : field != 0.0 ? field : otherwise;
}

#endif
