# What only makes a build faster is used if it is there, without an option: ccache, which keeps objects from build to
# build, and lld, which links the tests in a quarter of the time. A build folder keeps its first answer, since another one would
# compile or link everything again; where what it found is gone, it does without.
function(weft_faster variable program)
  if(NOT DEFINED ${variable})
    find_program(${variable} ${program})
  endif()
  if(${variable} AND NOT EXISTS "${${variable}}")
    message(STATUS "${${variable}} is gone: the build does without ${program}")
    set(${variable} "" PARENT_SCOPE)
  endif()
endfunction()

weft_faster(WEFT_CCACHE ccache)
if(WEFT_CCACHE AND NOT CMAKE_C_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${WEFT_CCACHE}) # also of the other languages
endif()
if(CMAKE_C_COMPILER_LAUNCHER)
  list(GET CMAKE_C_COMPILER_LAUNCHER 0 launcher)
  if(IS_ABSOLUTE "${launcher}" AND NOT EXISTS "${launcher}")
    message(FATAL_ERROR "CMAKE_C_COMPILER_LAUNCHER is ${launcher}, which is not there: remove ${CMAKE_BINARY_DIR}/CMakeCache.txt")
  endif()
  message(STATUS "Compilers are started by ${CMAKE_C_COMPILER_LAUNCHER}")
endif()

weft_faster(WEFT_LLD ld.lld)
set(WEFT_LLD_OPTION "")
if(WEFT_LLD)
  include(CheckLinkerFlag)
  check_linker_flag(C -fuse-ld=lld WEFT_HAS_LLD)
  if(WEFT_HAS_LLD)
    set(WEFT_LLD_OPTION -fuse-ld=lld)
  endif()
endif()
