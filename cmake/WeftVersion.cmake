# WEFT_VERSION, as core/version.h says; included before project().
set(WEFT_VERSION "")
foreach(part MAJOR MINOR PATCH)
  file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/../core/version.h line REGEX "^#define WF_VERSION_${part} [0-9]+$")
  string(REGEX REPLACE ".* " "" number "${line}")
  list(APPEND WEFT_VERSION ${number})
endforeach()
list(JOIN WEFT_VERSION "." WEFT_VERSION)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS core/version.h)
