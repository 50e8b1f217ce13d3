# A project outside the tree that uses the installed package.
if(NOT WEFT_SANITIZE)
  add_test(NAME consumer COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/consumer/consumer.sh ${CMAKE_COMMAND} ${PROJECT_BINARY_DIR}
    ${CMAKE_C_COMPILER} ${WEFT_HAS_CUDA})
  weft_test_properties(consumer 1 120)
  if(WEFT_FORTRAN)
    add_test(NAME fortran COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/consumer/fortran.sh ${CMAKE_COMMAND} ${PROJECT_BINARY_DIR}
      ${CMAKE_C_COMPILER} ${MPI_Fortran_COMPILER} ${MPIEXEC_EXECUTABLE})
    weft_test_properties(fortran 2 120)
  endif()
endif()
