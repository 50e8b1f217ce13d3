/* Room behind the memory that C++ code allocates, in programs under AddressSanitizer; CMake links it into each of them.
 * The project is C and never calls this.
 *
 * oneDNN reads one entry past the end of a vector while it makes bf16 products of masked rows (version 2.6,
 * jit_brgemm_amx_uker), and does not use what it read. With the C library's allocator that is the head of the next
 * piece of memory, which is always there. AddressSanitizer may have given out the last piece of a region; the read then
 * ends the program. */
#include <stdlib.h>

/* operator new and operator delete, by the names that C++ compilers give them where size_t is unsigned long. */
void *roomy_new(size_t bytes) __asm__("_Znwm");
void *roomy_new_nothrow(size_t bytes, const void *nothrow) __asm__("_ZnwmRKSt9nothrow_t");
void roomy_delete(void *made) __asm__("_ZdlPv");
void roomy_delete_sized(void *made, size_t bytes) __asm__("_ZdlPvm");

void *roomy_new(size_t bytes)
{
    /* Not malloc, whose calls from the project's own code are counted by alloc_steady.c. AddressSanitizer ends the
     * program where there is no memory. */
    return aligned_alloc(16, (bytes + 31) / 16 * 16);
}

void *roomy_new_nothrow(size_t bytes, const void *nothrow)
{
    return roomy_new(bytes);
}

void roomy_delete(void *made)
{
    free(made);
}

void roomy_delete_sized(void *made, size_t bytes)
{
    free(made);
}
