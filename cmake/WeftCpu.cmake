# core/cpu, compiled once for each level of x86-64 (what the psABI calls x86-64, -v3 with AVX2, -v4 with AVX-512), unless
# WEFT_NATIVE or another architecture leaves one. core/processor.c picks the level at run time. All levels have the same
# names, so the objects of one are made one object that shows the name of its table alone.
file(GLOB weft_cpu_sources CONFIGURE_DEPENDS core/cpu/*.c)
include(CheckCCompilerFlag)
check_c_compiler_flag(-march=x86-64-v4 WEFT_HAS_LEVELS)

# weft_cpu_level(TARGET): core/cpu as an object library.
function(weft_cpu_level target)
  add_library(${target} OBJECT ${weft_cpu_sources})
  target_link_libraries(${target} PRIVATE weft_flags weft_dnnl weft_omp)
  target_compile_definitions(${target} PRIVATE WF_LIBRARY)
  # No flag of a floating-point exception is ever read. Without this GCC computes the side of a choice that is not taken
  # only behind a branch, and a loop with a branch has no vectors where instructions have no masks.
  target_compile_options(${target} PRIVATE -fno-trapping-math)
endfunction()

if(WEFT_NATIVE OR NOT WEFT_HAS_LEVELS)
  weft_cpu_level(weft_cpu)
  set(WEFT_CPU_OBJECTS $<TARGET_OBJECTS:weft_cpu>)
else()
  set(WEFT_CPU_OBJECTS "")
  foreach(level x86_64 x86_64_v3 x86_64_v4)
    set(target weft_cpu_${level})
    set(table wf_kernels_cpu_${level})
    set(object ${PROJECT_BINARY_DIR}/cpu_${level}.o)
    string(REPLACE "_" "-" march ${level})
    string(REPLACE "x86-64" "-march=x86-64" march ${march})
    weft_cpu_level(${target})
    target_compile_options(${target} PRIVATE ${march})
    if(level STREQUAL "x86_64_v4" AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
      target_compile_options(${target} PRIVATE -mprefer-vector-width=512)
    endif()
    target_compile_definitions(${target} PRIVATE wf_kernels_cpu=${table})
    add_custom_command(OUTPUT ${object} COMMENT "core/cpu for ${level}" VERBATIM COMMAND_EXPAND_LISTS
      COMMAND ${CMAKE_LINKER} -r -o ${object} $<TARGET_OBJECTS:${target}>
      COMMAND ${CMAKE_OBJCOPY} --keep-global-symbol=${table} ${object}
      DEPENDS $<TARGET_OBJECTS:${target}>)
    set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
    list(APPEND WEFT_CPU_OBJECTS ${object})
  endforeach()
  add_custom_target(weft_cpu DEPENDS ${WEFT_CPU_OBJECTS})
  set_source_files_properties(core/processor.c PROPERTIES COMPILE_DEFINITIONS WF_CPU_LEVELS)
endif()
