# Messages are cut into small parts.
set(small_chunks WEFT_CHUNK_BYTES=10007)

weft_test(contract_comm LEVEL comm RANKS 1 2 3 4)
weft_test(exchange_plan LEVEL comm)
weft_test(boundaries LEVEL comm)
weft_test_without_mpi(boundaries)
weft_test_samples(boundaries 1 RANKS 1 ARGS schedules)
weft_test(schedules LEVEL comm)
weft_test(schedules_exchange LEVEL comm)
weft_test(schedules_faults LEVEL comm)
weft_test_without_mpi(schedules schedules_exchange schedules_faults)
weft_test_samples(schedules 6 RANKS 1 ARGS all_ranks meshes thousands TIMEOUT 3000)
weft_test_samples(schedules_exchange 3 RANKS 1 ARGS exchanges meshes uniform thousands a_rank_fails)
weft_test_samples(schedules_faults 4 RANKS 1 ARGS a_rank_fails)
weft_test_long(schedules_more_1 schedules_exchange_more_1 schedules_faults_more_1)
weft_test(schedules_folded LEVEL comm)
weft_test(schedules_run LEVEL comm)
weft_test(schedules_native LEVEL comm)
weft_test(schedules_synchronizing LEVEL comm)
weft_test(quantized LEVEL comm RANKS 1 2 3 4)
target_sources(quantized PRIVATE ${PROJECT_SOURCE_DIR}/examples/quantized.c)
weft_test(schedules_kept LEVEL comm RANKS 1 2 3)
weft_test(exchange LEVEL comm RANKS 1 2 3 4 6 8)
weft_test(boundary_halos LEVEL comm RANKS 1 2 3 4)
weft_test_samples(boundary_halos 1 RANKS 1 2 3 4 6 8 ARGS exchanges halos)
weft_test(exchange_long LEVEL comm RANKS 1 2 3 4 8)
weft_test(mesh LEVEL comm RANKS 1 2 3 4 6 8)
weft_test(comm_random LEVEL comm RANKS 1 2 3 4)
weft_test(comm_reducers LEVEL comm RANKS 1 2 3 4)
weft_test(comm_faults LEVEL comm RANKS 1 2 3 4)
weft_test(comm_notices LEVEL comm RANKS 3)
weft_test(comm_records LEVEL comm RANKS 1 2 3 4)
if(NOT BUILD_SHARED_LIBS) # which hides what it calls
  weft_test(comm_limits LEVEL comm RANKS 2 4 ENVIRONMENT TEST_TIMEOUT_MS=1000)
  weft_test_waits(comm_limits)
endif()
weft_test(comm_timeout LEVEL comm RANKS 2 TIMEOUT 60 ENVIRONMENT TEST_TIMEOUT_MS=2000 TEST_IDLE_MS=2000)
weft_test_waits(comm_timeout)
foreach(ranks 3 4)
  weft_test_ranks(comm_timeout_${ranks} comm_timeout ${CMAKE_CURRENT_SOURCE_DIR}/comm/comm_timeout.c RANKS ${ranks} TIMEOUT 60
    ENVIRONMENT TEST_TIMEOUT_MS=2000 TEST_IDLE_MS=2000 LABELS $<$<EQUAL:${ranks},3>:long>)
  if(NOT WEFT_SANITIZE) # which sees two ranks alone
    weft_test_waits(comm_timeout_${ranks})
  endif()
endforeach()
# Between nodes, where the state of a peer cannot be seen.
add_test(NAME cluster_comm_timeout COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/comm/cluster.sh -n 1 -t 100 ${MPIEXEC_EXECUTABLE}
  -x TEST_TIMEOUT_MS -x TEST_IDLE_MS $<TARGET_FILE:comm_timeout> missing_message busy_for_a_while)
weft_test_properties(cluster_comm_timeout 2 120)
weft_test_waits(cluster_comm_timeout)
set_tests_properties(cluster_comm_timeout PROPERTIES SKIP_RETURN_CODE 77 LABELS long)
set_property(TEST cluster_comm_timeout APPEND PROPERTY ENVIRONMENT TEST_TIMEOUT_MS=2000 TEST_IDLE_MS=2000)
weft_test(comm_split WRAPS LEVEL comm RANKS 2 4 TIMEOUT 100 ENVIRONMENT TEST_TIMEOUT_MS=5000)
target_link_options(comm_split PRIVATE -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc)
weft_test(background LEVEL comm RANKS 2 3)
weft_test(comm_lost WRAPS LEVEL comm RANKS 2 ENVIRONMENT TEST_TIMEOUT_MS=1500 TEST_IDLE_MS=1500)
target_link_options(comm_lost PRIVATE -Wl,--wrap=MPI_Cancel)
weft_test(comm_leaves LEVEL comm RANKS 2 4)
weft_test(outbox LEVEL comm RANKS 2 3 ENVIRONMENT ${small_chunks})
weft_test(comm_chunks LEVEL comm RANKS 1 2 3 4 ENVIRONMENT ${small_chunks})
weft_test(sum_bits LEVEL comm RANKS 3 4)

# What ranks do in shared memory, by threads under ThreadSanitizer: these files are compiled for it, with the test's own
# calls in place of those that MPI makes.
set(weft_watch_sources clock.c peers.c rank.c record.c recorder.c watchdog.c)
set(weft_shm_sources comm/engine/combine.c comm/engine/progress.c comm/engine/ring.c comm/engine/run.c comm/guard/control.c
  comm/mesh/exchange.c comm/mesh/exchange_way.c core/ref/convert.c core/ref/copy.c)
include(CheckCSourceRuns)
set(CMAKE_REQUIRED_FLAGS -fsanitize=thread)
check_c_source_runs("int main(void) { return 0; }" WEFT_THREAD_SANITIZER)
unset(CMAKE_REQUIRED_FLAGS)
# It cannot be one with the other sanitizers, and its files call what a shared library hides.
if(WEFT_THREAD_SANITIZER AND NOT WEFT_SANITIZE AND NOT BUILD_SHARED_LIBS)
  weft_test(shm_threads)
  list(TRANSFORM weft_shm_sources PREPEND ${PROJECT_SOURCE_DIR}/)
  target_sources(shm_threads PRIVATE ${weft_shm_sources})
  target_compile_options(shm_threads PRIVATE -fsanitize=thread -g)
  target_compile_definitions(shm_threads PRIVATE WF_LIBRARY wf_shm_window_open=threads_open
    wf_shm_window_close=threads_close wf_coll_barrier=threads_barrier)
  target_link_options(shm_threads PRIVATE -fsanitize=thread)
  target_link_libraries(shm_threads PRIVATE weft_mpi)
  set_property(TEST shm_threads APPEND PROPERTY ENVIRONMENT TSAN_OPTIONS=halt_on_error=1)
  set_tests_properties(shm_threads PROPERTIES TIMEOUT 60 PROCESSORS 8)

  weft_test(watch_threads)
  list(TRANSFORM weft_watch_sources PREPEND ${PROJECT_SOURCE_DIR}/comm/safety/)
  target_sources(watch_threads PRIVATE ${weft_watch_sources})
  target_compile_options(watch_threads PRIVATE -fsanitize=thread -g)
  target_compile_definitions(watch_threads PRIVATE WF_LIBRARY)
  target_link_options(watch_threads PRIVATE -fsanitize=thread)
  add_test(NAME watch_threads_stuck COMMAND watch_threads stuck)
  weft_test_properties(watch_threads_stuck 1 60)
  weft_test_waits(watch_threads_stuck)
  set_property(TEST watch_threads watch_threads_stuck APPEND PROPERTY ENVIRONMENT
    TSAN_OPTIONS=halt_on_error=1:suppressions=${CMAKE_CURRENT_SOURCE_DIR}/tsan.supp:print_suppressions=0 WEFT_TIMEOUT_MS=500)
  set_tests_properties(watch_threads_stuck PROPERTIES FAIL_REGULAR_EXPRESSION ThreadSanitizer
    PASS_REGULAR_EXPRESSION "a call that is stuck has not come back.*barrier")
endif()

# Gigabytes: left out of `make test`.
weft_test(comm_large LEVEL comm RANKS 2 LABELS large)

# The battery again with messages cut into small parts; between the nodes, too.
weft_test_ranks(contract_comm_chunks contract_comm ${CMAKE_CURRENT_SOURCE_DIR}/comm/contract_comm.c RANKS 2 3
  ENVIRONMENT ${small_chunks})

# One rank ends with an error, the others say so; where WF_MUST fails, the job ends.
set_tests_properties(comm_leaves_2 comm_leaves_4 PROPERTIES PASS_REGULAR_EXPRESSION
  "rank 1: the program ended with exit code 3")
add_test(NAME comm_leaves_by_must COMMAND ${MPIEXEC_EXECUTABLE} -np 2 $<TARGET_FILE:comm_leaves> must)
weft_test_properties(comm_leaves_by_must 2 60)
add_test(NAME comm_leaves_many COMMAND ${MPIEXEC_EXECUTABLE} -np 2 $<TARGET_FILE:comm_leaves> many)
weft_test_properties(comm_leaves_many 2 60)
set_tests_properties(comm_leaves_many PROPERTIES PASS_REGULAR_EXPRESSION "rank 1: the program ended with exit code 3")
set_tests_properties(comm_leaves_by_must PROPERTIES PASS_REGULAR_EXPRESSION "rank 1.*comm is NULL")
weft_test(reducers LEVEL comm RANKS 1 2 3 4)
weft_test(reducers_traffic LEVEL comm RANKS 2)
weft_test(node_sums LEVEL comm RANKS 1 2 3 4)

# On two virtual nodes of two ranks each.
function(weft_cluster_test name)
  add_test(NAME cluster_${name} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/comm/cluster.sh -t 200 ${MPIEXEC_EXECUTABLE}
    $<TARGET_FILE:${name}>)
  weft_test_properties(cluster_${name} 4 240)
  set_tests_properties(cluster_${name} PROPERTIES SKIP_RETURN_CODE 77)
endfunction()
foreach(name contract_comm comm_random reducers reducers_traffic)
  weft_cluster_test(${name})
endforeach()
add_test(NAME cluster_reducers_chunks COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/comm/cluster.sh -t 200 ${MPIEXEC_EXECUTABLE}
  $<TARGET_FILE:reducers>)
weft_test_properties(cluster_reducers_chunks 4 240)
set_property(TEST cluster_reducers_chunks APPEND PROPERTY ENVIRONMENT ${small_chunks})
set_tests_properties(cluster_reducers_chunks PROPERTIES SKIP_RETURN_CODE 77)

# On nodes of different numbers of ranks, and on three.
foreach(nodes 2+1 1+3 1+2+1)
  add_test(NAME cluster_sum_bits_${nodes} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/comm/cluster.sh -n ${nodes} -t 60
    ${MPIEXEC_EXECUTABLE} $<TARGET_FILE:sum_bits>)
  weft_test_properties(cluster_sum_bits_${nodes} 4 100)
  set_tests_properties(cluster_sum_bits_${nodes} PROPERTIES SKIP_RETURN_CODE 77)
endforeach()

# Gradients and exchanges by messages, since there is no memory to share.
function(weft_small_shm_test name line)
  add_test(NAME small_shm_${name} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/comm/small_shm.sh ${MPIEXEC_EXECUTABLE} ${line}
    $<TARGET_FILE:${name}> ${ARGN})
  weft_test_properties(small_shm_${name} 3 100)
  set_tests_properties(small_shm_${name} PROPERTIES SKIP_RETURN_CODE 77)
endfunction()
weft_small_shm_test(reducers "no memory is shared" sums_in_parts)
weft_small_shm_test(node_sums "no memory is shared, sums go by messages")
weft_small_shm_test(exchange "exchanges inside a node go by messages")

# Exchanges both ways at once.
weft_cluster_test(exchange)
weft_cluster_test(exchange_long)

# Fifty starts of eight ranks each where /dev/shm is nearly full; a few of them in every run.
function(weft_full_shm_test name mib starts)
  add_test(NAME full_shm_${name} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/comm/full_shm.sh ${MPIEXEC_EXECUTABLE} ${mib} ${starts}
    $<TARGET_FILE:mesh> memory_comes_back)
  weft_test_properties(full_shm_${name} 8 900)
  set_tests_properties(full_shm_${name} PROPERTIES SKIP_RETURN_CODE 77)
endfunction()
weft_full_shm_test(64 64 2)
weft_full_shm_test(64_many 64 50)
weft_full_shm_test(32_many 32 50)
set_tests_properties(full_shm_64_many full_shm_32_many PROPERTIES LABELS proof)
