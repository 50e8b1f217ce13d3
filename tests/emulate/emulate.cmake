# The kernels of core/cuda without a GPU: the same sources compiled for the host against tests/emulate, which stands in
# for the CUDA language and runtime, and put to the contract of the kernel table.
enable_language(CXX)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_C_COMPILER_LAUNCHER})
endif()

file(GLOB kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/core/cuda/*.cu)
set_source_files_properties(${kernels} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-x;c++;-Wno-unknown-pragmas")
set(parts "")
foreach(part device memory capture table nvtx matmul)
  list(APPEND parts ${PROJECT_SOURCE_DIR}/core/cuda/${part}.c)
endforeach()
set(weft_dnn_parts "")
foreach(part conv dnn_graph dnn_plan dnn_tune)
  list(APPEND weft_dnn_parts ${PROJECT_SOURCE_DIR}/core/cuda/${part}.c)
endforeach()
add_library(weft_emulated_device OBJECT ${kernels} ${parts} emulate/device.cpp emulate/properties.cpp
  emulate/runtime.cpp emulate/cublas.cpp)
add_library(weft_emulated_dnn OBJECT ${weft_dnn_parts} emulate/cudnn.cpp emulate/engines.cpp emulate/graph.cpp)
foreach(part device dnn)
  target_include_directories(weft_emulated_${part} BEFORE PRIVATE emulate/include emulate/include_dnn)
  target_link_libraries(weft_emulated_${part} PRIVATE weft_flags)
endforeach()
set(emulated $<TARGET_OBJECTS:weft_emulated_device> $<TARGET_OBJECTS:weft_emulated_dnn>)

weft_objects(core_objects core)
set(limit 600)
if(WEFT_SANITIZE)
  set(limit 900)
endif()
foreach(source contract_device contract_kernels contract_norm contract_elementwise contract_memory known_numbers
    known_answers)
  set(test emulated_${source})
  weft_test_source(file ${source})
  add_executable(${test} ${file} core/contract.c ${core_objects} ${emulated})
  target_link_libraries(${test} PRIVATE weft_dnnl weft_omp weft_test_main weft_flags m)
  add_test(NAME ${test} COMMAND ${test})
  weft_test_properties(${test} 1 ${limit})
  set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT WEFT_DEVICE=cuda WEFT_TF32=0)
endforeach()

# Steps as CUDA graphs.
weft_objects(step_objects optim)
foreach(source captured captured_errors)
  set(test emulated_${source})
  weft_test_source(file ${source})
  add_executable(${test} ${file} ${step_objects} $<TARGET_OBJECTS:weft_comm_nccl> ${emulated})
  target_link_libraries(${test} PRIVATE weft_dnnl weft_omp weft_test_main weft_test_world weft_nccl weft_mpi weft_hdf5 weft_zlib
    weft_flags Threads::Threads m)
  add_test(NAME ${test} COMMAND ${test})
  weft_test_properties(${test} 1 ${limit})
  set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT WEFT_DEVICE=cuda)
endforeach()

add_executable(emulated_device emulate/emulated_device.c ${core_objects} ${emulated})
target_link_libraries(emulated_device PRIVATE weft_dnnl weft_omp weft_test_main weft_flags m)
add_test(NAME emulated_device COMMAND emulated_device)
weft_test_properties(emulated_device 1 100)

# As it is set, and with each of the settings that choose among cuDNN's engines.
add_executable(emulated_convolution emulate/emulated_convolution.c ${core_objects} ${emulated})
target_link_libraries(emulated_convolution PRIVATE weft_dnnl weft_omp weft_test_main weft_flags m)
foreach(setting WEFT_TF32=1 WEFT_TF32=0 WEFT_DETERMINISTIC=1 WEFT_AUTOTUNE=1)
  string(TOLOWER emulated_convolution_${setting} test)
  string(REGEX REPLACE "weft_|=" "" test ${test})
  add_test(NAME ${test} COMMAND emulated_convolution)
  weft_test_properties(${test} 1 ${limit})
  set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT ${setting})
endforeach()

# Mixed precision through all folders up to optim.
weft_objects(objects optim)
foreach(source mixed optim_scale)
  set(test emulated_${source})
  weft_test_source(file ${source})
  add_executable(${test} ${file} ${objects} ${PROJECT_SOURCE_DIR}/comm/collective/no_nccl.c ${emulated})
  target_link_libraries(${test} PRIVATE weft_dnnl weft_omp weft_mpi weft_hdf5 weft_zlib weft_stb Threads::Threads weft_test_main
    weft_test_world weft_flags m)
  add_test(NAME ${test} COMMAND ${test})
  weft_test_properties(${test} 1 ${limit})
  set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT WEFT_DEVICE=cuda WEFT_TF32=0)
endforeach()
# Of their kind the short suite has emulated_contract_device, emulated_contract_memory, emulated_known_* and
# emulated_optim_scale.
set_property(TEST emulated_contract_kernels emulated_contract_norm emulated_contract_elementwise emulated_captured
  emulated_captured_errors emulated_mixed APPEND PROPERTY LABELS long)
