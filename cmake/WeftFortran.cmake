# The Fortran module weft: tools/fortran/module.awk makes it from the headers for users. It has interfaces, and a few
# procedures of its own (helpers.f90 and comm.c), which are in libweft_fortran.a.
option(WEFT_FORTRAN "Build the Fortran module weft" OFF)
if(NOT WEFT_FORTRAN)
  return()
endif()
enable_language(Fortran)
find_package(MPI REQUIRED COMPONENTS Fortran) # of the example; the module needs none
set(WEFT_FORTRAN_MODULES ${CMAKE_INSTALL_LIBDIR}/fortran/weft CACHE STRING "Where weft.mod is installed")
set(module ${PROJECT_BINARY_DIR}/fortran)
set(module_headers ${WEFT_HEADERS})
list(FILTER module_headers EXCLUDE REGEX "_author\\.h$|^weft\\.h$|^core/cuda/")
add_custom_command(OUTPUT ${module}/weft.f90 COMMENT "The Fortran module" VERBATIM
  COMMAND sh -c "{ awk -f cmake/statements.awk -f tools/fortran/module.awk \"$@\" && cat tools/fortran/helpers.f90; } >${module}/weft.f90"
    fortran ${module_headers}
  WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
  DEPENDS cmake/statements.awk tools/fortran/module.awk tools/fortran/helpers.f90 ${module_headers})
file(MAKE_DIRECTORY ${module})
add_library(weft_fortran STATIC ${module}/weft.f90 tools/fortran/comm.c)
add_library(weft::fortran ALIAS weft_fortran)
set_target_properties(weft_fortran PROPERTIES Fortran_MODULE_DIRECTORY ${module} EXPORT_NAME fortran)
target_include_directories(weft_fortran PUBLIC $<BUILD_INTERFACE:${module}> $<INSTALL_INTERFACE:${WEFT_FORTRAN_MODULES}>)
target_link_libraries(weft_fortran PUBLIC weft)
target_include_directories(weft_fortran PRIVATE ${MPI_C_INCLUDE_DIRS})
target_compile_definitions(weft_fortran PRIVATE $<$<COMPILE_LANGUAGE:C>:WF_LIBRARY>)

install(TARGETS weft_fortran EXPORT weft ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${module}/weft.mod DESTINATION ${WEFT_FORTRAN_MODULES})
install(FILES ${module}/weft.f90 DESTINATION ${CMAKE_INSTALL_DATADIR}/weft) # for other compilers
file(RELATIVE_PATH WEFT_PC_MODULES ${CMAKE_INSTALL_FULL_LIBDIR} ${CMAKE_INSTALL_PREFIX}/${WEFT_FORTRAN_MODULES})
configure_file(cmake/weft-fortran.pc.in ${PROJECT_BINARY_DIR}/weft-fortran.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/weft-fortran.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
