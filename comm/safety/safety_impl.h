/* For comm/safety and what stands on it: records of calls, the flight recorder, the watchdog and the clock. They are of
 * the process, and are called by its main thread unless said otherwise. Nothing here calls MPI. */
#ifndef WF_COMM_SAFETY_IMPL_H
#define WF_COMM_SAFETY_IMPL_H

#include "comm/comm_impl.h"

/* --- record.c: what a call is --- */
/* Fields that are not given are unset; root -1: none. */
wf_call_record wf_call_record_plain(const char *operation, int root);
/* Notes where the program called. */
void wf_call_record_place(wf_call_record *record);

/* --- rank.c --- */
/* The world's number of a rank of comm (wf_rank_text); a negative rank, which is none, stays as it is. */
int wf_world_rank(const wf_comm *comm, int rank);

/* --- clock --- */
/* The time of the monotonic clock. */
int64_t wf_now_ns(void);
/* That time as of the last tick of the system, at most a few milliseconds old; reading it takes a quarter of the
 * time. */
int64_t wf_tick_ns(void);

/* --- recorder.c: no allocation and no system call once it is open --- */
/* Maps the file, or takes plain memory where there can be none (one line of the log says why). Called once. */
void wf_recorder_open(void);
/* Notes rank and number of ranks, which MPI knows once it has started. */
void wf_recorder_place(int rank, int size);
/* Each notes how the call of comm->call.record stands: entered, in agreement with the left neighbour, over. */
void wf_recorder_enter(wf_comm *comm);
void wf_recorder_settle(wf_comm *comm);
void wf_recorder_end(wf_comm *comm, const char *operation, bool failed);
/* Notes the step of its schedule for which the call waits; empty: none. */
void wf_recorder_step(wf_comm *comm, const char *step);
void wf_recorder_where(const char *where); /* in a call of MPI that may wait; empty: in none */
void wf_recorder_error(const char *text);  /* why the first communicator died, or the process ends */
/* Returns true if a process of this job on this machine is stopped. */
bool wf_recorder_finds_stopped(void);
/* Removes the file at a clean end, unless the user chose the folder. */
void wf_recorder_remove(void);
/* Prints the last calls to stderr, one a line. Any thread. */
void wf_recorder_print(void);
int wf_recorder_rank(void);
/* This process's own recorder; the path of another process's on this machine, empty where this one keeps no file. */
wf_trace *wf_recorder_trace(void);
void wf_recorder_path(int64_t pid, char *path, size_t size);
/* Notes a beat of the process, by which others see that it runs. The watchdog's thread calls it ten times a second. */
void wf_recorder_beat(void);
/* Notes that the call of comm waits for a process since then; the wait ends with the call, or with pid 0. */
void wf_recorder_wait(const wf_comm *comm, int64_t pid, int64_t since_ns);

/* --- peers.c: what other processes of this machine do, as their flight recorders say --- */
/* Returns true if the last beat of the process is no older than the time-out and lost_ns, in which this process did not
 * run: the other one is taken to compute, or to wait. */
bool wf_peer_lives(int64_t pid, int64_t lost_ns);
/* Returns true if the process exists and a signal has stopped it. */
bool wf_peer_stopped(int64_t pid);
/* Returns true if the recorder of the process still holds that it closed the communicator of this number. */
bool wf_peer_closed(int64_t pid, uint64_t comm);
/* Returns true if processes, this one among them, wait for each other in a circle: a deadlock. The text names them and
 * their calls; *unlike is set if these are not one collective. A changed *stamp means another circle. */
bool wf_peer_circle(uint64_t *stamp, bool *unlike, char text[WF_FAILURE_TEXT]);

/* --- watchdog.c: a thread that never calls MPI, and ends the process if its main thread is stuck --- */
/* Called once, before MPI starts. */
void wf_watchdog_start(void);
/* From begin to end the main thread must call beat within the time-out; it may compute as long as it likes elsewhere.
 * `what` lives on. running: returns true between the two; any thread. */
void wf_watch_begin(const char *what);
void wf_watch_beat(void);
bool wf_watch_running(void);
void wf_watch_end(void);
/* Watches something else for a while (NULL: the thread computes), and returns what was watched, to go back to. */
const char *wf_watch_swap(const char *what);
/* The process is about to leave, and gets this long; later calls of begin and end do nothing. */
void wf_watch_last(const char *what, long limit_ms);

#endif
