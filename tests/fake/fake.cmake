# Tests on a guarded device (tests/fake/guard.h): the suite's own, linked with it in place of CUDA, WEFT_DEVICE=cuda.
file(GLOB fake_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/fake/guard*.c
  ${CMAKE_CURRENT_SOURCE_DIR}/fake/nccl_fake.c)
weft_objects(fake_objects all)
add_library(weft_fake STATIC ${fake_objects} ${fake_sources} ${PROJECT_SOURCE_DIR}/comm/collective/nccl.c)
target_include_directories(weft_fake BEFORE PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/fake) # its <nccl.h>
target_include_directories(weft_fake PUBLIC $<TARGET_PROPERTY:weft,INTERFACE_INCLUDE_DIRECTORIES>)
target_link_libraries(weft_fake PUBLIC weft_flags weft_dnnl weft_omp weft_mpi weft_hdf5 weft_zlib weft_stb Threads::Threads m)

function(weft_guard_run name ranks)
  add_test(NAME guard_${name}_${ranks} COMMAND ${MPIEXEC_EXECUTABLE} -np ${ranks} $<TARGET_FILE:guard_${name}> ${ARGN})
  weft_test_properties(guard_${name}_${ranks} ${ranks} 300)
  set_property(TEST guard_${name}_${ranks} APPEND PROPERTY ENVIRONMENT WEFT_DEVICE=cuda)
endfunction()

# weft_guard(NAME [RANKS 1 2] [ARGS ...] [LABELS ...]): test NAME again, on the guarded device; without RANKS one process.
function(weft_guard name)
  cmake_parse_arguments(GUARD "" "" "RANKS;ARGS;LABELS" ${ARGN})
  get_target_property(sources ${name} SOURCES)
  list(FILTER sources EXCLUDE REGEX TARGET_OBJECTS)
  add_executable(guard_${name} ${sources})
  target_link_libraries(guard_${name} PRIVATE weft_test_main weft_test_world weft_fake)
  if(GUARD_RANKS)
    weft_test_source(source ${name})
    weft_test_ranks(guard_${name} guard_${name} ${source} RANKS ${GUARD_RANKS} ARGS ${GUARD_ARGS} LABELS ${GUARD_LABELS}
      ENVIRONMENT WEFT_DEVICE=cuda)
    return()
  endif()
  add_test(NAME guard_${name} COMMAND guard_${name} ${GUARD_ARGS})
  weft_test_properties(guard_${name} 1 300)
  set_property(TEST guard_${name} APPEND PROPERTY ENVIRONMENT WEFT_DEVICE=cuda)
  set_property(TEST guard_${name} APPEND PROPERTY LABELS ${GUARD_LABELS})
endfunction()

# weft_guard_again(TEST NAME COMMUNICATOR RANKS ... [ARGS ...] [LABELS ...]): the guarded test NAME by this communicator.
function(weft_guard_again test name communicator)
  weft_test_source(source ${name})
  weft_test_ranks(${test} guard_${name} ${source} ${ARGN} ENVIRONMENT WEFT_DEVICE=cuda TEST_COMMUNICATOR=${communicator})
endfunction()

# A test of the fakes themselves.
function(weft_test_fake name)
  add_executable(${name} fake/${name}.c)
  target_link_libraries(${name} PRIVATE weft_test_main weft_test_world weft_fake)
  weft_test_ranks(${name} ${name} ${CMAKE_CURRENT_SOURCE_DIR}/fake/${name}.c RANKS 1 2 4 TIMEOUT 100
    ENVIRONMENT WEFT_DEVICE=cuda WEFT_TIMEOUT_MS=4000)
endfunction()

foreach(name core_basics core_tape contract_device contract_memory known_answers functions_semantics functions_values
    gradcheck_functions gradcheck_layers layers_values upsample optim_algorithms optim_step optim_archive datasets_batches
    captured_errors)
  weft_guard(${name})
endforeach()
# The kind of the following tests of the label `long` is in the short suite already.
foreach(name contract_norm contract_elementwise contract_kernels)
  weft_guard(${name} LABELS long)
endforeach()
foreach(name exchange equiv_sync_norm redistribute equiv_data)
  weft_guard(${name} RANKS 1 2 4)
endforeach()
foreach(name equiv_channel equiv_spatial)
  weft_guard(${name} RANKS 1 2 4 ARGS f32)
endforeach()
foreach(name comm_reducers communication channel_training optim_multi_node optim_shard evaluator spatial_unet spatial_chain
    datasets_scatter datasets_shared optim_scale)
  weft_guard(${name} RANKS 2)
endforeach()
weft_test_fake(nccl_order)
weft_test_fake(nccl_tensors)
weft_test_fake(device_exchange)
foreach(name equiv_data equiv_spatial)
  weft_guard_again(nccl_order_${name}_on_2 ${name} pure_nccl RANKS 2 ARGS f32)
  weft_guard_again(nccl_order_${name} ${name} pure_nccl RANKS 1 4 ARGS f32 LABELS long)
endforeach()
foreach(name equiv_sync_norm equiv_channel)
  weft_guard_again(nccl_order_${name} ${name} pure_nccl RANKS 1 2 4 ARGS f32 LABELS long)
endforeach()
weft_guard(captured RANKS 1 2)
weft_guard_again(guard_captured_flat captured flat RANKS 2 ARGS ranks)
weft_guard_again(nccl_order_captured captured pure_nccl RANKS 1 2 4 ARGS ranks)
weft_guard(mixed ARGS types cast copies changed small)
weft_guard(contract_comm RANKS 2 LABELS long)
foreach(name flat pure_nccl)
  weft_guard_again(guard_contract_comm_${name} contract_comm ${name} RANKS 2)
endforeach()
weft_guard(reducers RANKS 2)
weft_guard(models RANKS 2 ARGS sgd_f64 LABELS long)

# A rank that dies once its GPU was given work, of which others want the result.
if(NOT WEFT_SANITIZE)
  add_executable(guard_deaths comm/deaths.c)
  target_link_libraries(guard_deaths PRIVATE weft_fake)
  foreach(place device message)
    add_test(NAME nccl_deaths_${place} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/comm/deaths.sh ${MPIEXEC_EXECUTABLE}
      $<TARGET_FILE:guard_deaths> $<TARGET_FILE:wf-doctor> ${place})
    weft_test_properties(nccl_deaths_${place} 2 200)
    weft_test_waits(nccl_deaths_${place})
    set_property(TEST nccl_deaths_${place} APPEND PROPERTY ENVIRONMENT WEFT_DEVICE=cuda COMMUNICATOR=pure_nccl)
  endforeach()
endif()

# Short runs of examples.
if(WEFT_EXAMPLES)
  set(example ${PROJECT_SOURCE_DIR}/examples)
  set(common ${example}/common.c ${example}/images.c ${example}/parallel.c ${example}/plot.c)
  add_executable(guard_dcgan_cifar ${example}/dcgan_cifar.c ${example}/models/dcgan.c ${common})
  add_executable(guard_segment ${example}/segment.c ${example}/models/unet.c ${example}/shapes.c ${common})
  foreach(name dcgan_cifar segment)
    target_link_libraries(guard_${name} PRIVATE weft_fake)
  endforeach()
  weft_guard_run(dcgan_cifar 2 --channels 8 --batch 4 --iterations 3 --out guard_dcgan_out)
  add_test(NAME guard_dcgan_captured COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/examples/examples_captured.sh
    $<TARGET_FILE:guard_dcgan_cifar> ${MPIEXEC_EXECUTABLE} 1)
  weft_test_properties(guard_dcgan_captured 1 300)
  set_property(TEST guard_dcgan_captured APPEND PROPERTY ENVIRONMENT WEFT_DEVICE=cuda)
  weft_guard_run(segment 4 --mesh height=2,width=2 --size 64 --iterations 2 --out guard_segment_out)
endif()
