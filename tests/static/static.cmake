# What can be seen without running the library.
find_program(CXX_COMPILER NAMES g++ clang++ c++ REQUIRED)

function(weft_static name)
  add_test(NAME static_${name} COMMAND ${ARGN})
  set_tests_properties(static_${name} PROPERTIES LABELS static TIMEOUT 120)
endfunction()

weft_static(include_arrows ${CMAKE_CURRENT_SOURCE_DIR}/static/include_arrows.sh)
weft_static(include_arrows_self ${CMAKE_CURRENT_SOURCE_DIR}/static/include_arrows.sh --self)
weft_static(headers_alone ${CMAKE_CURRENT_SOURCE_DIR}/static/headers_alone.sh ${CMAKE_C_COMPILER} ${CXX_COMPILER}
  ${PROJECT_BINARY_DIR})
weft_static(house_rules ${CMAKE_CURRENT_SOURCE_DIR}/static/house_rules.sh)
if(WEFT_HAS_CUDA)
  file(GLOB kernels CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/core/cuda/*.cu)
  weft_static(stack ${CMAKE_CURRENT_SOURCE_DIR}/static/stack.sh ${PROJECT_BINARY_DIR}/CMakeFiles/weft_core_cuda.dir
    ${kernels})
else()
  weft_static(stack ${CMAKE_COMMAND} -E echo "skipped: this build has no CUDA")
  set_tests_properties(static_stack PROPERTIES SKIP_REGULAR_EXPRESSION "skipped: ")
endif()
