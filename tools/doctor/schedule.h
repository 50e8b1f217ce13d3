/* wf-doctor --schedule: what the ranks of a cluster would do in a call, without one. */
#ifndef WF_TOOLS_DOCTOR_SCHEDULE_H
#define WF_TOOLS_DOCTOR_SCHEDULE_H

/* The arguments after "--schedule". Prints; the exit code tells. */
int schedule_report(int argc, char **argv);

#endif
