#ifndef WF_TESTS_EMULATE_ORDER_H
#define WF_TESTS_EMULATE_ORDER_H

#include <stddef.h>
#include <stdint.h>
#include <vector>

/* Returns a random order of the tasks of a graph in which each task comes after those that before[task] marks. Every
 * call draws another order, from a seed that every run shares. */
std::vector<size_t> emulated_order(const std::vector<std::vector<bool>> &before);

#endif
