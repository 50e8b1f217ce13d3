/* Functions that the files of comm itself, which open and close communicators and meshes, call of one another. No room
 * includes it: they are above all rooms. */
#ifndef WF_COMM_OPEN_IMPL_H
#define WF_COMM_OPEN_IMPL_H

#include "comm/mesh/mesh_impl.h"
#include "comm/reduce/reduce_impl.h"
#include "comm/transport/transport_impl.h"

/* --- process.c --- */

/* Initialises MPI if the program has not. */
wf_status wf_mpi_start(int *argc, char ***argv);
/* Ends the job. */
void wf_mpi_abort(int code);
/* For the exit of the process: a communicator is open and could be told; is no longer. */
void wf_mpi_opened(wf_comm *comm);
void wf_mpi_closed(wf_comm *comm);

/* --- mpi_setup.c: everything of MPI that a communicator has --- */
/* Fills rank, size, nodes, mpi_comm and control from a pointer to an MPI_Comm (NULL: the world), and agrees with the
 * others: where `status` (this rank's so far) is an error on some rank, the lowest such rank's error becomes that of
 * all. */
wf_status wf_mpi_attach(wf_comm *comm, const void *mpi_comm, wf_status status);
/* Fills `child` with what a part of the ranks member[0..members), of which this is one, knows without a message, and
 * takes its memory. Local. */
wf_status wf_mpi_prepare(const wf_comm *comm, const int *member, int members, wf_comm *child);
/* Connects it, where it has several ranks. Collective among them. */
wf_status wf_mpi_part(wf_comm *comm, const int *member, wf_comm *child);

/* --- names.c --- */

/* Sets name and reducer by name; NULL is "auto", which is left to wf_comm_settle. Local. */
wf_status wf_comm_choose(const char *name, wf_comm *comm) WF_NODISCARD;
/* Once ranks, nodes and device are known: chooses for "auto", refuses what cannot be, and connects what the reducer
 * needs. The same outcome on all ranks. Collective. */
wf_status wf_comm_settle(wf_comm *comm) WF_NODISCARD;

/* --- open.c --- */

/* Opens a second communicator of the same ranks, for the background stream. Collective. */
wf_comm *wf_comm_again(wf_comm *comm);
/* The ranks member[0..members), in this order, of which this is one; NULL on failure. Collective among these alone:
 * other ranks need not know; local where it is this rank alone. */
wf_comm *wf_comm_part(wf_comm *comm, const int *member, int members);

/* --- background.c --- */

void wf_background_free(struct wf_background *background);
/* Gives up what is under way for comm, and closes its `async`. */
void wf_background_close(wf_comm *comm);

/* --- mesh.c --- */

/* Axes from the one whose place changes slowest with the rank to the fastest. */
extern const wf_axis wf_mesh_order[WF_AXES];

/* The product of the sizes is that of `world`. Local. */
wf_status wf_mesh_init(wf_mesh *mesh, wf_comm *world, const int size[WF_AXES]) WF_NODISCARD;
void wf_mesh_clear(wf_mesh *mesh);
/* Sets the places along these axes to those of the rank of this number among all that differ along them alone. */
void wf_mesh_place_along(const wf_mesh *mesh, unsigned axes, int rank, int place[WF_AXES]);
/* The axes of the set that have more than one rank. */
unsigned wf_mesh_split_axes(const wf_mesh *mesh, unsigned axes);
/* Returns true if this rank's place is 0 along each of these axes. */
bool wf_mesh_is_first(const wf_mesh *mesh, unsigned axes);

#endif
