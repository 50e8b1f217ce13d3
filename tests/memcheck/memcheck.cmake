# valgrind's memcheck over one program of each kind (memcheck.sh), in `make proof`.
if(NOT WEFT_SANITIZE AND WEFT_EXAMPLES)
  add_test(NAME memcheck COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/memcheck/memcheck.sh ${PROJECT_BINARY_DIR} ${MPIEXEC_EXECUTABLE})
  weft_test_properties(memcheck 2 3600)
  set_tests_properties(memcheck PROPERTIES LABELS proof SKIP_RETURN_CODE 77)
endif()
