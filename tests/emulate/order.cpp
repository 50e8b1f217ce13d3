/* The order in which a graph's tasks are replayed. */
#include "tests/emulate/order.hpp"

static uint64_t state = 0x9e3779b97f4a7c15;

/* xorshift64. */
static size_t draw(size_t choices)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (size_t)(state % choices);
}

std::vector<size_t> emulated_order(const std::vector<std::vector<bool>> &before)
{
    std::vector<size_t> order, ready, missing(before.size());
    for (size_t i = 0; i < before.size(); i++) {
        for (const bool b : before[i])
            missing[i] += b;
        if (missing[i] == 0)
            ready.push_back(i);
    }
    while (!ready.empty()) {
        const size_t at = draw(ready.size()), task = ready[at];
        ready[at] = ready.back();
        ready.pop_back();
        order.push_back(task);
        for (size_t i = task + 1; i < before.size(); i++)
            if (task < before[i].size() && before[i][task] && --missing[i] == 0)
                ready.push_back(i);
    }
    return order;
}
