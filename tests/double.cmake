# Tests on a guarded device (tests/double/guard.h): the suite's own, linked with it in place of CUDA, WEFT_DEVICE=cuda.
file(GLOB double_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/double/*.c)
weft_objects(double_objects all)
add_library(weft_double STATIC ${double_objects} ${double_sources})
target_include_directories(weft_double PUBLIC $<TARGET_PROPERTY:weft,INTERFACE_INCLUDE_DIRECTORIES>)
target_link_libraries(weft_double PUBLIC weft_flags weft_dnnl weft_omp weft_mpi weft_zlib weft_stb Threads::Threads m)

# weft_guard(NAME [RANKS 1 2] [TEST name] [ARGS ...]): the test or example NAME of these sources; guard_TEST is what it
# is called.
function(weft_guard name)
  cmake_parse_arguments(GUARD "" "" "RANKS;ARGS" ${ARGN})
  get_target_property(sources ${name} SOURCES)
  list(FILTER sources EXCLUDE REGEX TARGET_OBJECTS)
  add_executable(guard_${name} ${sources})
  target_link_libraries(guard_${name} PRIVATE weft_test_main weft_double)
  foreach(ranks ${GUARD_RANKS})
    add_test(NAME guard_${name}_${ranks}
      COMMAND ${MPIEXEC_EXECUTABLE} -np ${ranks} $<TARGET_FILE:guard_${name}> ${GUARD_ARGS})
    weft_test_properties(guard_${name}_${ranks} ${ranks} 300)
    set_property(TEST guard_${name}_${ranks} APPEND PROPERTY ENVIRONMENT WEFT_DEVICE=cuda)
  endforeach()
endfunction()

foreach(name core_basics core_tape core_tensor contract_kernels contract_norm contract_elementwise contract_memory
    known_answers known_numbers functions_values functions_semantics gradcheck_functions gradcheck_layers
    layers_errors layers_values golden upsample optim_algorithms optim_schedule optim_step optim_archive
    datasets_batches)
  weft_guard(${name} RANKS 1)
endforeach()
foreach(name contract_comm exchange exchange_long mesh comm_random comm_reducers comm_faults reducers equiv_sync_norm
    communication redistribute equiv_channel channel_training optim_multi_node evaluator equiv_data models
    equiv_spatial spatial_unet spatial_misuse spatial_chain datasets_scatter datasets_shared)
  weft_guard(${name} RANKS 1 2 4)
endforeach()
