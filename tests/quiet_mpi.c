/* MPI's start and end, left out of the search for leaks in programs under AddressSanitizer; CMake links it into each.
 *
 * OpenMPI takes some three thousand pieces of memory in MPI_Init_thread and MPI_Finalize that it never gives back.
 * tests/lsan.supp would excuse them by the names on their stacks, which takes a second at the end of every rank. Weft's
 * own code runs in neither. What other calls of MPI leave behind is looked for, and excused by name. */
void __lsan_disable(void); /* <sanitizer/lsan_interface.h> */
void __lsan_enable(void);

/* As in mpi.h, which not every program has. */
int MPI_Init_thread(int *argc, char ***argv, int wanted, int *given);
int MPI_Finalize(void);
int PMPI_Init_thread(int *argc, char ***argv, int wanted, int *given);
int PMPI_Finalize(void);
#pragma weak PMPI_Init_thread
#pragma weak PMPI_Finalize

int MPI_Init_thread(int *argc, char ***argv, int wanted, int *given)
{
    __lsan_disable();
    const int code = PMPI_Init_thread(argc, argv, wanted, given);
    __lsan_enable();
    return code;
}

int MPI_Finalize(void)
{
    __lsan_disable();
    const int code = PMPI_Finalize();
    __lsan_enable();
    return code;
}
