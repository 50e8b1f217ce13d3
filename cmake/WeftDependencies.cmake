# What the project takes from the system; packages.txt lists the Debian packages.
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS C)
find_package(MPI REQUIRED COMPONENTS C)
find_package(ZLIB REQUIRED)
find_path(DNNL_INCLUDE oneapi/dnnl/dnnl.h REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
find_path(DLPACK_INCLUDE dlpack/dlpack.h REQUIRED) # a header alone
find_path(STB_INCLUDE stb/stb_image.h REQUIRED)
find_library(STB_LIBRARY stb)
# Debian has HDF5 in two flavours side by side; what is used is in both, and the serial one is preferred.
find_path(HDF5_INCLUDE hdf5.h PATH_SUFFIXES hdf5/serial hdf5/openmpi REQUIRED)
find_library(HDF5_LIBRARY NAMES hdf5_serial hdf5 hdf5_openmpi REQUIRED)
message(STATUS "HDF5: ${HDF5_LIBRARY}")

function(weft_system name)
  cmake_parse_arguments(SYSTEM "" "" "INCLUDE;LIBRARIES" ${ARGN})
  add_library(${name} INTERFACE)
  if(SYSTEM_INCLUDE) # no public header needs them
    target_include_directories(${name} SYSTEM INTERFACE "$<BUILD_INTERFACE:${SYSTEM_INCLUDE}>")
  endif()
  target_link_libraries(${name} INTERFACE ${SYSTEM_LIBRARIES})
endfunction()

# NCCL is for builds with CUDA.
find_path(NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} PATHS /usr/local/cuda/include)
find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} PATHS /usr/local/cuda/lib64)
if(WEFT_HAS_CUDA AND NCCL_INCLUDE AND NCCL_LIBRARY)
  set(WEFT_NCCL_SOURCE nccl.c)
  weft_system(weft_nccl INCLUDE ${NCCL_INCLUDE} ${CUDAToolkit_INCLUDE_DIRS} LIBRARIES ${NCCL_LIBRARY})
  weft_run_path(weft_nccl ${NCCL_LIBRARY})
  message(STATUS "NCCL: ${NCCL_LIBRARY}")
else()
  set(WEFT_NCCL_SOURCE no_nccl.c)
  weft_system(weft_nccl)
  message(STATUS "NCCL: none")
endif()
weft_system(weft_dnnl INCLUDE ${DNNL_INCLUDE} LIBRARIES ${DNNL_LIBRARY})
weft_system(weft_dlpack INCLUDE ${DLPACK_INCLUDE})
weft_system(weft_omp LIBRARIES OpenMP::OpenMP_C)
weft_system(weft_mpi LIBRARIES MPI::MPI_C)
weft_system(weft_zlib LIBRARIES ZLIB::ZLIB)
weft_system(weft_hdf5 INCLUDE ${HDF5_INCLUDE} LIBRARIES ${HDF5_LIBRARY})
set(stb ${STB_LIBRARY})
set(WEFT_STB_SOURCE "")
if(NOT STB_LIBRARY) # elsewhere than in Debian stb is headers alone
  set(stb "")
  set(WEFT_STB_SOURCE ${PROJECT_BINARY_DIR}/generated/stb.c)
  file(CONFIGURE OUTPUT ${WEFT_STB_SOURCE} CONTENT
    "#define STB_IMAGE_IMPLEMENTATION\n#include <stb/stb_image.h>\n#define STB_IMAGE_WRITE_IMPLEMENTATION\n#include <stb/stb_image_write.h>\n")
  set_source_files_properties(${WEFT_STB_SOURCE} PROPERTIES COMPILE_OPTIONS -w)
endif()
weft_system(weft_stb INCLUDE ${STB_INCLUDE} LIBRARIES ${stb})

# What all folders together link; and the same without a device, for programs with a double of it.
set(WEFT_HOST_SYSTEM weft_dnnl weft_omp weft_mpi weft_hdf5 weft_zlib weft_stb)
set(WEFT_SYSTEM weft_cuda weft_nccl ${WEFT_HOST_SYSTEM})
