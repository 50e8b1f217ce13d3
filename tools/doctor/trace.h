/* Reads the flight recorders of a job. */
#ifndef TOOLS_DOCTOR_TRACE_H
#define TOOLS_DOCTOR_TRACE_H

/* Prints what every rank was doing, and the rank and the first collective that differ, or who is behind whom. Returns
 * the exit code: 0 where all ranks agree, 1 where they do not, 2 where nothing can be read. */
int trace_report(const char *folder);

#endif
