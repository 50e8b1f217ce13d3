/* The algorithms: each adds to a schedule what one rank does in a collective among the members of a group. Pure
 * functions of the builder's agreed configuration and rank, of the group and of the arguments; the time is that of the
 * steps they add. A rank that is not in the group adds nothing. `root` is a member of the group, not a rank.
 *
 * Sums go in the order of members, so they have the same bits on all of them; 16-bit types are summed in f32 and
 * rounded once. */
#ifndef WF_COMM_ENGINE_ALGORITHMS_AUTHOR_H
#define WF_COMM_ENGINE_ALGORITHMS_AUTHOR_H

#include "comm/engine/builder_author.h"

/* --- build_spread.c: what is only moved --------------------------------------------------------------------------- */
/* A binomial tree; more than one piece goes along the chain of members, each of which passes on a piece while the next
 * one arrives. */
void wf_build_bcast(wf_builder *b, const wf_group *group, wf_address data, size_t bytes, int root);
/* `all` gets the members' blocks of equal length in their order; `mine` may be this member's block in it. Short ones in
 * ceil(log2 P) steps (Bruck), long ones from every member to every other one. */
void wf_build_allgather(wf_builder *b, const wf_group *group, wf_address mine, size_t bytes, wf_address all);
/* In place: member m has elements [shard[m], shard[m + 1]) of the vector, and all get all. */
void wf_build_gather_shards(wf_builder *b, const wf_group *group, wf_address data, const int64_t *shard, size_t size);
void wf_build_barrier(wf_builder *b, const wf_group *group);
/* The short all-gather without the last copy: slot j gets what member place + j has. */
wf_steps wf_build_bruck(wf_builder *b, const wf_group *group, wf_address mine, size_t bytes, wf_address slot);

/* --- build_reduce.c ----------------------------------------------------------------------------------------------- */
/* y is the reduction of the members' x, on the root or everywhere (root -1); elsewhere y is not used. Short vectors
 * go to every member that wants the result; long ones in pieces of one block a member, which combines it and sends
 * it on. */
void wf_build_reduce(wf_builder *b, const wf_group *group, wf_address x, wf_address y, int64_t count, wf_dtype dtype,
                     wf_reduce_op op, int root);
/* In place: elements [shard[m], shard[m + 1]) are summed on member m; the rest of the vector is left as it is. */
void wf_build_sum_shards(wf_builder *b, const wf_group *group, wf_address data, const int64_t *shard, wf_dtype dtype);

/* --- build_node.c: through the ring that the ranks of this node share --------------------------------------------- */
/* As wf_build_reduce and wf_build_bcast, among the ranks of this node; the root is a place in it. */
void wf_build_node_reduce(wf_builder *b, wf_address x, wf_address y, int64_t count, wf_dtype dtype, wf_reduce_op op,
                          int root);
void wf_build_node_bcast(wf_builder *b, wf_address data, size_t bytes, int root);

#endif
