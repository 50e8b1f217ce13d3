/* Memory of a double of a device: shut but while the device works, and then open where it is touched. To open all of it
 * for each piece of work takes longer than most work. A process has one such memory. */
#ifndef WF_TESTS_SHUT_MEMORY_H
#define WF_TESTS_SHUT_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Addresses for `bytes`, shut, a view of `file`; NULL: errno says why. Who touches them while they are shut, or beyond
 * the page of *used at any time, ends in refused(), which does not return. */
char *shut_memory(int file, size_t bytes, const size_t *used, void (*refused)(void));
/* Opens the memory. Calls may be nested: the last shut_memory_close shuts it. `by_others`: threads other than that of
 * shut_memory touch it, too. */
void shut_memory_open(bool by_others);
void shut_memory_close(void);

#ifdef __cplusplus
}
#endif

#endif
