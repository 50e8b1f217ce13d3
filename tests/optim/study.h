/* What the two files of the tests of studies share. */
#ifndef WF_TESTS_OPTIM_STUDY_H
#define WF_TESTS_OPTIM_STUDY_H

#include <weft/weft.h>

extern wf_comm *world;
extern int rank, size;

/* The path of a file in the folder of the test; valid until the next call but one. */
const char *path(const char *name);
wf_study *open_study(const char *name, wf_study_opts opts);
/* The rows of a study, counted by state. */
const wf_study_row *count_rows(wf_study *study, int64_t counted[6]);

/* study_refused.c */
void study_wrong_options(void);
void study_other_files(void);
void study_different_options(void);
void study_fresh_files(void);
void study_wrong_calls(void);
void study_other_words(void);

#endif
