/* What a study has found, as a table and as pictures drawn by gnuplot. On one rank; the program ends where a file
 * cannot be written. Without gnuplot the scripts are there, and one line says so. */
#ifndef EXAMPLES_SEARCH_PLOTS_H
#define EXAMPLES_SEARCH_PLOTS_H

#include <weft/weft.h>

/* trials.csv: a line for each trial, with a column for each parameter. */
void search_write_table(const char *out, const wf_study_row *rows, int64_t count);
/* history.svg: the value of each trial, and the best so far, of a study whose values should be large. */
void search_draw_history(const char *out, const wf_study_row *rows, int64_t count);
/* importances.svg: a bar for each parameter. */
void search_draw_importances(const char *out, const wf_study_importance *list, int count);

#endif
