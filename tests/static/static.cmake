# What can be seen without running the library.
find_program(CXX_COMPILER NAMES g++ clang++ c++ REQUIRED)

function(weft_static name)
  add_test(NAME static_${name} COMMAND ${ARGN})
  set_tests_properties(static_${name} PROPERTIES LABELS static TIMEOUT 600)
endfunction()

weft_static(include_arrows ${CMAKE_CURRENT_SOURCE_DIR}/static/include_arrows.sh)
weft_static(include_arrows_self ${CMAKE_CURRENT_SOURCE_DIR}/static/include_arrows.sh --self)
# One level of core/cpu stands for all.
set(cpu weft_cpu)
if(TARGET weft_cpu_x86_64_v4)
  set(cpu weft_cpu_x86_64_v4)
endif()
set(objects "")
foreach(part weft_core ${cpu} weft_core_cuda weft_comm weft_comm_nccl weft_layers weft_optim weft_datasets weft_fit)
  list(APPEND objects $<TARGET_OBJECTS:${part}>)
endforeach()
weft_static(call_arrows ${CMAKE_CURRENT_SOURCE_DIR}/static/call_arrows.sh ${CMAKE_NM} ${objects} COMMAND_EXPAND_LISTS)
weft_static(call_arrows_self ${CMAKE_CURRENT_SOURCE_DIR}/static/call_arrows.sh --self)
# The loops of core/cpu, as GCC optimises them.
if(TARGET weft_cpu_x86_64_v4 AND CMAKE_C_COMPILER_ID STREQUAL "GNU" AND CMAKE_BUILD_TYPE STREQUAL "Release" AND
    NOT WEFT_SANITIZE)
  set(vectors ${CMAKE_CURRENT_SOURCE_DIR}/static/vectors.sh ${CMAKE_OBJDUMP})
  weft_static(vectors ${vectors} xmm $<TARGET_OBJECTS:weft_cpu_x86_64> COMMAND_EXPAND_LISTS)
  weft_static(vectors_v3 ${vectors} ymm $<TARGET_OBJECTS:weft_cpu_x86_64_v3> COMMAND_EXPAND_LISTS)
  weft_static(vectors_v4 ${vectors} zmm $<TARGET_OBJECTS:weft_cpu_x86_64_v4> COMMAND_EXPAND_LISTS)
  weft_static(vectors_self ${CMAKE_CURRENT_SOURCE_DIR}/static/vectors.sh --self ${CMAKE_OBJDUMP} ${CMAKE_C_COMPILER})
endif()
weft_static(hdf5_calls ${CMAKE_CURRENT_SOURCE_DIR}/static/hdf5_calls.sh ${CMAKE_NM} $<TARGET_OBJECTS:hdf5_faults> --
  $<TARGET_OBJECTS:weft_comm> COMMAND_EXPAND_LISTS)
weft_static(headers_alone ${CMAKE_CURRENT_SOURCE_DIR}/static/headers_alone.sh ${CMAKE_C_COMPILER} ${CXX_COMPILER}
  ${PROJECT_BINARY_DIR})
weft_static(no_empty_words ${CMAKE_CURRENT_SOURCE_DIR}/static/no_empty_words.sh ${PROJECT_SOURCE_DIR}
  ${PROJECT_BINARY_DIR})
weft_static(no_empty_words_self ${CMAKE_CURRENT_SOURCE_DIR}/static/no_empty_words.sh --self)
weft_static(test_report ${CMAKE_CURRENT_SOURCE_DIR}/static/test_report.sh ${PROJECT_SOURCE_DIR}/tools)
weft_static(bars ${CMAKE_CURRENT_SOURCE_DIR}/static/bars.sh)
weft_static(house_rules ${CMAKE_CURRENT_SOURCE_DIR}/static/house_rules.sh)
weft_static(house_rules_self ${CMAKE_CURRENT_SOURCE_DIR}/static/house_rules.sh --self)
weft_static(comm_measures ${CMAKE_CURRENT_SOURCE_DIR}/static/comm_measures.sh)
weft_static(comm_measures_self ${CMAKE_CURRENT_SOURCE_DIR}/static/comm_measures.sh --self)
if(WEFT_HAS_CUDA)
  file(GLOB kernels CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/core/cuda/*.cu)
  weft_static(stack ${CMAKE_CURRENT_SOURCE_DIR}/static/stack.sh ${PROJECT_BINARY_DIR}/CMakeFiles/weft_core_cuda.dir
    ${kernels})
  # What the machine code of sm_90 loads at a time.
  add_executable(machine_code static/machine_code.c)
  target_link_libraries(machine_code PRIVATE weft_flags)
  add_library(machine_code_known OBJECT static/machine_code.cu)
  set_target_properties(machine_code_known PROPERTIES CUDA_ARCHITECTURES 90-real)
  weft_static(loads ${CMAKE_CURRENT_SOURCE_DIR}/static/loads.sh $<TARGET_FILE:machine_code>
    $<TARGET_OBJECTS:machine_code_known> ${PROJECT_BINARY_DIR}/CMakeFiles/weft_core_cuda.dir)
  set_tests_properties(static_loads PROPERTIES SKIP_REGULAR_EXPRESSION "SKIP: ")
else()
  weft_static(stack ${CMAKE_COMMAND} -E echo "SKIP: this build has no CUDA")
  set_tests_properties(static_stack PROPERTIES SKIP_REGULAR_EXPRESSION "SKIP: ")
endif()

# The names that a shared library shows. A tree of the static form links its objects into one for this test.
if(NOT WEFT_SANITIZE)
  set(shared weft)
  if(NOT BUILD_SHARED_LIBS)
    weft_objects(all_objects all)
    weft_device_objects(all_device all)
    add_library(weft_shared SHARED ${all_objects} ${all_device})
    target_link_libraries(weft_shared PRIVATE weft_flags ${WEFT_SYSTEM} Threads::Threads m)
    weft_hide_private(weft_shared)
    set(shared weft_shared)
  endif()
  find_program(GCC gcc REQUIRED) # its -aux-info lists the declarations of a translation unit
  weft_static(exports ${CMAKE_CURRENT_SOURCE_DIR}/static/exports.sh $<TARGET_FILE:${shared}> ${GCC} ${WEFT_HEADERS})
endif()

# Calls of every public function, from the declarations that the compiler finds.
if(GCC)
  set(calls ${CMAKE_CURRENT_BINARY_DIR}/calls)
  set(every ${calls}/tests/static)
  add_custom_command(OUTPUT ${every}/every_call_table.h COMMENT "Calls of every public function" VERBATIM
    COMMAND ${CMAKE_COMMAND} -E make_directory ${every}
    COMMAND ${GCC} -std=c11 -DWF_LIBRARY -I${PROJECT_SOURCE_DIR} -I${PROJECT_BINARY_DIR}/include -fsyntax-only
      -aux-info ${every}/prototypes -x c ${PROJECT_SOURCE_DIR}/weft.h
    COMMAND sh -c "awk -f \"$1\" \"$2\" >\"$3\"" every ${CMAKE_CURRENT_SOURCE_DIR}/static/every_call.awk ${every}/prototypes
      ${every}/every_call_table.h
    DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/static/every_call.awk ${headers})
  weft_test(every_call LEVEL all)
  target_sources(every_call PRIVATE ${every}/every_call_table.h)
  target_include_directories(every_call PRIVATE ${calls})
endif()
