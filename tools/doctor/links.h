/* How fast ranks reach each other. */
#ifndef TOOLS_DOCTOR_LINKS_H
#define TOOLS_DOCTOR_LINKS_H

#include "comm/comm.h"

/* Rank 0 prints bandwidth and latency of messages between two ranks of a node, and between nodes. Collective. */
void links_report(wf_comm *comm);

#endif
