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

# weft_guard(NAME [RANKS 1 2] [ARGS ...]): test NAME again, on the guarded device.
function(weft_guard name)
  cmake_parse_arguments(GUARD "" "" "RANKS;ARGS" ${ARGN})
  get_target_property(sources ${name} SOURCES)
  list(FILTER sources EXCLUDE REGEX TARGET_OBJECTS)
  add_executable(guard_${name} ${sources})
  target_link_libraries(guard_${name} PRIVATE weft_test_main weft_fake)
  foreach(ranks ${GUARD_RANKS})
    weft_guard_run(${name} ${ranks} ${GUARD_ARGS})
  endforeach()
endfunction()

# A test of the fakes themselves.
function(weft_test_fake name)
  add_executable(${name} fake/${name}.c)
  target_link_libraries(${name} PRIVATE weft_test_main weft_fake)
  foreach(ranks 1 2 4)
    add_test(NAME ${name}_${ranks} COMMAND ${MPIEXEC_EXECUTABLE} -np ${ranks} $<TARGET_FILE:${name}>)
    weft_test_properties(${name}_${ranks} ${ranks} 100)
    set_property(TEST ${name}_${ranks} APPEND PROPERTY ENVIRONMENT WEFT_DEVICE=cuda WEFT_TIMEOUT_MS=4000)
  endforeach()
endfunction()

foreach(name core_basics core_tape contract_device contract_norm contract_elementwise contract_memory known_answers
    functions_semantics functions_values gradcheck_functions gradcheck_layers layers_values upsample optim_algorithms
    optim_step optim_archive datasets_batches)
  weft_guard(${name} RANKS 1)
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
foreach(ranks 1 2 4)
  foreach(name equiv_data equiv_spatial equiv_sync_norm equiv_channel)
    add_test(NAME nccl_order_${name}_${ranks}
      COMMAND ${MPIEXEC_EXECUTABLE} -np ${ranks} $<TARGET_FILE:guard_${name}> f32)
    weft_test_properties(nccl_order_${name}_${ranks} ${ranks} 300)
    set_property(TEST nccl_order_${name}_${ranks} APPEND PROPERTY ENVIRONMENT WEFT_DEVICE=cuda
      TEST_COMMUNICATOR=pure_nccl)
  endforeach()
endforeach()
weft_guard(captured RANKS 1 2)
weft_guard(captured_errors RANKS 1)
add_test(NAME guard_captured_flat_2 COMMAND ${MPIEXEC_EXECUTABLE} -np 2 $<TARGET_FILE:guard_captured> ranks)
weft_test_properties(guard_captured_flat_2 2 300)
set_property(TEST guard_captured_flat_2 APPEND PROPERTY ENVIRONMENT WEFT_DEVICE=cuda TEST_COMMUNICATOR=flat)
foreach(ranks 1 2 4)
  add_test(NAME nccl_order_captured_${ranks}
    COMMAND ${MPIEXEC_EXECUTABLE} -np ${ranks} $<TARGET_FILE:guard_captured> ranks)
  weft_test_properties(nccl_order_captured_${ranks} ${ranks} 300)
  set_property(TEST nccl_order_captured_${ranks} APPEND PROPERTY ENVIRONMENT WEFT_DEVICE=cuda
    TEST_COMMUNICATOR=pure_nccl)
endforeach()
weft_guard(mixed RANKS 1 ARGS types cast copies changed small)
weft_guard(contract_comm RANKS 2)
foreach(name flat pure_nccl)
  add_test(NAME guard_contract_comm_${name} COMMAND ${MPIEXEC_EXECUTABLE} -np 2 $<TARGET_FILE:guard_contract_comm>)
  weft_test_properties(guard_contract_comm_${name} 2 300)
  set_property(TEST guard_contract_comm_${name} APPEND PROPERTY ENVIRONMENT WEFT_DEVICE=cuda TEST_COMMUNICATOR=${name})
endforeach()
weft_guard(reducers RANKS 2)
weft_guard(contract_kernels RANKS 1)
weft_guard(models RANKS 2 ARGS sgd_f64)

# A rank that dies once its GPU was given work, of which others want the result.
if(NOT WEFT_SANITIZE)
  add_executable(guard_deaths comm/deaths.c)
  target_link_libraries(guard_deaths PRIVATE weft_fake)
  foreach(place device message)
    add_test(NAME nccl_deaths_${place} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/comm/deaths.sh ${MPIEXEC_EXECUTABLE}
      $<TARGET_FILE:guard_deaths> $<TARGET_FILE:wf-doctor> ${place})
    weft_test_properties(nccl_deaths_${place} 2 200)
    set_property(TEST nccl_deaths_${place} APPEND PROPERTY ENVIRONMENT WEFT_DEVICE=cuda COMMUNICATOR=pure_nccl)
  endforeach()
endif()

# Their kind is in the short suite already.
set(long guard_models_2 guard_contract_comm_2 guard_contract_kernels_1 guard_contract_elementwise_1
  guard_contract_norm_1)
foreach(ranks 1 2 4)
  foreach(name equiv_data equiv_spatial equiv_sync_norm equiv_channel)
    list(APPEND long nccl_order_${name}_${ranks})
  endforeach()
endforeach()
list(REMOVE_ITEM long nccl_order_equiv_data_2 nccl_order_equiv_spatial_2)
set_tests_properties(${long} PROPERTIES LABELS long)

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
