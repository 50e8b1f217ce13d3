# Headers under include/weft, the library, its CMake package and its pkg-config file.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/weft)

install(FILES ${WEFT_PLACES} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/weft)
foreach(header ${WEFT_HEADERS})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/weft/${folder})
endforeach()

# A static library needs its own libraries when a program links it, so their targets travel with it.
get_target_property(type weft TYPE)
if(type STREQUAL STATIC_LIBRARY)
  set(travelling ${WEFT_SYSTEM})
endif()
install(TARGETS weft ${travelling} EXPORT weft ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT weft NAMESPACE weft:: DESTINATION ${package} FILE weft-targets.cmake)
configure_package_config_file(cmake/weft-config.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/weft-config.cmake
  INSTALL_DESTINATION ${package})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/weft-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/weft-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/weft-config-version.cmake
  DESTINATION ${package})

if(WEFT_HAS_CUDA)
  get_target_property(cuda weft_cuda INTERFACE_LINK_LIBRARIES)
  get_target_property(nccl weft_nccl INTERFACE_LINK_LIBRARIES)
  list(APPEND cuda ${nccl} -Wl,-rpath,${CUDAToolkit_LIBRARY_DIR})
  list(FILTER cuda EXCLUDE REGEX NOTFOUND)
endif()
set(WEFT_PC_LIBRARIES ${MPI_C_LIBRARIES} ${DNNL_LIBRARY} ${cuda} ${HDF5_LIBRARY} ${ZLIB_LIBRARIES} ${STB_LIBRARY} ${STB_LIBRARY} ${OpenMP_C_FLAGS} -pthread -lm)
list(JOIN WEFT_PC_LIBRARIES " " WEFT_PC_LIBRARIES)
if(type STREQUAL STATIC_LIBRARY)
  set(WEFT_PC_PUBLIC ${WEFT_PC_LIBRARIES})
  set(WEFT_PC_LIBRARIES "")
endif()
file(RELATIVE_PATH WEFT_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/weft.pc.in ${CMAKE_CURRENT_BINARY_DIR}/weft.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/weft.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
