# The installed headers, and a shared library that exports what they declare and nothing else.
file(GLOB_RECURSE WEFT_HEADERS CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} core/*.h comm/*.h layers/*.h optim/*.h datasets/*.h fit/*.h)
list(FILTER WEFT_HEADERS EXCLUDE REGEX "_impl\\.h$")
if(NOT WEFT_HAS_CUDA)
  list(FILTER WEFT_HEADERS EXCLUDE REGEX "^core/cuda/")
endif()
list(APPEND WEFT_HEADERS weft.h)

set(map ${PROJECT_BINARY_DIR}/weft.map)
set(interface ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}) # before 1.0 every minor version is another interface
list(TRANSFORM WEFT_HEADERS PREPEND ${PROJECT_SOURCE_DIR}/ OUTPUT_VARIABLE headers)
add_custom_command(OUTPUT ${map} COMMENT "Exported names" VERBATIM
  COMMAND sh -c "awk -v version=WEFT_${interface} -f cmake/statements.awk -f cmake/exports.awk \"$@\" >${map}" exports ${headers}
  WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
  DEPENDS cmake/statements.awk cmake/exports.awk ${headers})
add_custom_target(weft_map DEPENDS ${map})

# Calls inside of the library are bound when it is linked.
function(weft_hide_private target)
  add_dependencies(${target} weft_map)
  set_target_properties(${target} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${interface} LINK_DEPENDS ${map})
  target_link_options(${target} PRIVATE -Wl,--version-script=${map} -Wl,-Bsymbolic-functions)
endfunction()
