# Flags of every translation unit of the project.
add_library(weft_flags INTERFACE)
target_include_directories(weft_flags INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/include) # weft_places.h
target_compile_definitions(weft_flags INTERFACE _GNU_SOURCE)
set(both -Wall -Wextra -Wshadow -Wno-unused-parameter -fno-math-errno -fvisibility=default)
set(of_c ${both} -Wpedantic -Wstrict-prototypes -Wmissing-prototypes)
set(of_cxx ${both} -fno-exceptions -fno-rtti -fno-threadsafe-statics)
set(of_cuda_alone "")
if(WEFT_WERROR)
  list(APPEND of_c -Werror)
  list(APPEND of_cxx -Werror)
  set(of_cuda_alone -Werror=all-warnings)
endif()
list(JOIN of_cxx "," of_cuda)
target_compile_options(weft_flags INTERFACE "$<$<COMPILE_LANGUAGE:C>:${of_c}>" "$<$<COMPILE_LANGUAGE:CXX>:${of_cxx}>"
  "$<$<COMPILE_LANGUAGE:CUDA>:${of_cuda_alone};-Xcompiler=${of_cuda}>")
# ref and gradients must see NaN and infinity as they are: no -ffast-math. Kernels ask for fused multiplication by name, since
# gcc does not contract a*b+c in ISO C.
if(WEFT_NATIVE)
  target_compile_options(weft_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-march=native>)
  if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
    target_compile_options(weft_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-mprefer-vector-width=512>)
  endif()
endif()
if(WEFT_SANITIZE)
  # The checks put in by the sanitizers make gcc believe that a format may be NULL, and numbers without bounds.
  target_compile_options(weft_flags INTERFACE
    "$<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=address,undefined;-fno-omit-frame-pointer;-g1;-Wno-format-overflow;-Wno-format-truncation>")
  target_link_options(weft_flags INTERFACE -fsanitize=address,undefined)
  add_library(weft_sanitized OBJECT tests/roomy_new.c tests/quiet_mpi.c) # in every program; their heads say why
  target_compile_options(weft_sanitized PRIVATE -fsanitize=address,undefined -g1 ${of_c})
  target_sources(weft_flags INTERFACE
    $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:$<TARGET_OBJECTS:weft_sanitized>>)
endif()
if(WEFT_FUZZ)
  target_compile_options(weft_flags INTERFACE
    $<$<COMPILE_LANGUAGE:C>:-fsanitize=fuzzer-no-link,address,undefined> -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g)
  target_link_options(weft_flags INTERFACE -fsanitize=address,undefined)
endif()
