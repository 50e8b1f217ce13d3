# What happens when ranks die, stop, or lose each other.
weft_test(comm_watchdog LEVEL comm RANKS 2)
add_executable(deaths comm/deaths.c)
target_link_libraries(deaths PRIVATE weft_test_main weft weft_flags)
# The limits are short, and a sanitizer's start-up is not.
if(NOT WEFT_SANITIZE)
  foreach(place start forward two reduction message sample shutdown)
    add_test(NAME deaths_${place} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/comm/deaths.sh ${MPIEXEC_EXECUTABLE}
      $<TARGET_FILE:deaths> $<TARGET_FILE:wf-doctor> ${place})
    weft_test_properties(deaths_${place} 2 60)
    weft_test_waits(deaths_${place})
  endforeach()
  add_test(NAME deaths_whole COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/comm/deaths.sh ${MPIEXEC_EXECUTABLE}
    $<TARGET_FILE:deaths> $<TARGET_FILE:wf-doctor>)
  weft_test_properties(deaths_whole 2 600)
  set_property(TEST deaths_whole APPEND PROPERTY ENVIRONMENT EVERY_RANK=1)
  set_tests_properties(deaths_whole PROPERTIES LABELS proof)
endif()
add_test(NAME deaths_trace COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/comm/trace.sh ${MPIEXEC_EXECUTABLE} $<TARGET_FILE:deaths>
  $<TARGET_FILE:wf-doctor>)
weft_test_properties(deaths_trace 3 60)
weft_test_waits(deaths_trace comm_watchdog_2)

foreach(ranks 1 2 4)
  add_test(NAME doctor_${ranks} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/comm/doctor.sh ${ranks} 1 ${MPIEXEC_EXECUTABLE}
    -np ${ranks} $<TARGET_FILE:wf-doctor>)
  weft_test_properties(doctor_${ranks} ${ranks} 100)
endforeach()
if(SSE41 IN_LIST WEFT_LEVELS)
  weft_at_level(at SSE41)
  add_test(NAME doctor_sse41 COMMAND ${at} ${CMAKE_CURRENT_SOURCE_DIR}/comm/doctor.sh 1 1 ${MPIEXEC_EXECUTABLE} -np 1
    $<TARGET_FILE:wf-doctor>)
  weft_test_properties(doctor_sse41 1 100)
endif()
add_test(NAME cluster_doctor COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/comm/doctor.sh 4 2 ${CMAKE_CURRENT_SOURCE_DIR}/comm/cluster.sh
  -t 60 ${MPIEXEC_EXECUTABLE} $<TARGET_FILE:wf-doctor>)
weft_test_properties(cluster_doctor 4 100)
set_tests_properties(cluster_doctor PROPERTIES SKIP_RETURN_CODE 77)
add_test(NAME cluster_cut COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/comm/cluster_cut.sh ${MPIEXEC_EXECUTABLE}
  $<TARGET_FILE:deaths>)
weft_test_properties(cluster_cut 4 100)
set_tests_properties(cluster_cut PROPERTIES SKIP_RETURN_CODE 77)
add_test(NAME deaths_launcher COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/comm/deaths_launcher.sh ${MPIEXEC_EXECUTABLE}
  $<TARGET_FILE:deaths>)
weft_test_properties(deaths_launcher 3 60)
weft_test_waits(deaths_launcher)
add_test(NAME comm_watchdog_stuck COMMAND ${MPIEXEC_EXECUTABLE} -np 2 $<TARGET_FILE:comm_watchdog> stuck 1)
weft_test_properties(comm_watchdog_stuck 2 60)
weft_test_waits(comm_watchdog_stuck)
set_tests_properties(comm_watchdog_stuck PROPERTIES PASS_REGULAR_EXPRESSION
  "rank 0: MPI_Init has not come back for .*hook: MPI_Init has not come back.*Exit code: +75")
set_property(TEST comm_watchdog_2 APPEND PROPERTY ENVIRONMENT "TEST_TIMEOUT_MS=1200")
set_property(TEST comm_watchdog_stuck APPEND PROPERTY ENVIRONMENT "WEFT_TIMEOUT_MS=1200")

add_test(NAME doctor_schedule COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/comm/doctor_schedule.sh $<TARGET_FILE:wf-doctor>)
weft_test_properties(doctor_schedule 1 60)
add_test(NAME tool_numbers COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/comm/tool_numbers.sh $<TARGET_FILE:wf-doctor>
  $<TARGET_FILE:wf-plan> $<TARGET_FILE:wf-data>)
weft_test_properties(tool_numbers 1 60)
weft_test(numbers)
target_sources(numbers PRIVATE ${PROJECT_SOURCE_DIR}/tools/number.c)

# The end of a process: a child's is not the job's, and one that ends early and well waits for the others.
add_executable(exits comm/exits.c)
target_link_libraries(exits PRIVATE weft_test_main weft weft_mpi weft_flags)
foreach(mode fork early thread finalize)
  add_test(NAME exits_${mode} COMMAND ${MPIEXEC_EXECUTABLE} -np 2 $<TARGET_FILE:exits> ${mode})
  weft_test_properties(exits_${mode} 2 60)
  weft_test_waits(exits_${mode})
endforeach()
set_property(TEST exits_early APPEND PROPERTY ENVIRONMENT "TEST_TIMEOUT_MS=1000")
add_test(NAME exits_recorder COMMAND exits recorder)
weft_test_properties(exits_recorder 1 60)
