# Writes weft_places.h: for each function that a public header marks WF_PLACED a macro of its name, which notes the place
# of the call (core/site.h). Read anew whenever one of these headers changes.
set(WEFT_PLACES ${CMAKE_CURRENT_BINARY_DIR}/include/weft_places.h)
file(GLOB headers CONFIGURE_DEPENDS core/*.h comm/*.h layers/*.h optim/*.h datasets/*.h fit/*.h)
list(FILTER headers EXCLUDE REGEX "_(impl|author)\\.h$|core/site\\.h$")
set(places "/* Made by cmake/WeftPlaces.cmake. Calls of these functions note file and line for errors and the flight recorder. */
#ifndef WF_PLACES_H
#define WF_PLACES_H
#ifndef WF_LIBRARY

")
foreach(header ${headers})
  file(READ ${header} text)
  string(REGEX MATCHALL "WF_PLACED [^;]*" prototypes "${text}")
  foreach(prototype ${prototypes})
    string(REGEX MATCH "^WF_PLACED ([a-z_]+ ?\\*?)(wf_[a-z0-9_]+)\\(" found "${prototype}")
    set(name ${CMAKE_MATCH_2})
    string(REGEX REPLACE "[ *]" "" type "${CMAKE_MATCH_1}")
    if(NOT type STREQUAL "wf_status")
      string(APPEND places "#define ${name}(...) WF_SITE_OF(${type}, ${name}(__VA_ARGS__))\n")
    elseif(prototype MATCHES "WF_NODISCARD")
      string(APPEND places "#define ${name}(...) WF_SITE(${name}(__VA_ARGS__))\n")
    else()
      string(APPEND places "#define ${name}(...) WF_SITE_LAX(${name}(__VA_ARGS__))\n")
    endif()
  endforeach()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
endforeach()
string(APPEND places "\n#endif\n#endif\n")
set(before "")
if(EXISTS ${WEFT_PLACES})
  file(READ ${WEFT_PLACES} before)
endif()
if(NOT before STREQUAL places) # the same file keeps its date, and nothing is compiled anew
  file(WRITE ${WEFT_PLACES} "${places}")
endif()
