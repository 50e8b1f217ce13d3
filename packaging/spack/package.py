# Copyright (c) The Weft authors
#
# SPDX-License-Identifier: MIT

import os

from spack.package import *


class Weft(CMakePackage):
    """Weft is a C11 library for training neural networks across processes. A
    communicator wraps MPI; layers come in a standard and a parallel form, and
    every parallel form computes what the serial form computes."""

    homepage = "https://example.org/weft"  # until the project has a page
    url = "https://example.org/weft/weft-0.1.0.tar.xz"  # what `make dist` writes

    license("MIT", checked_by="the authors of Weft")

    version("0.1.0")  # without a checksum until the archive is published

    variant("shared", default=True, description="Build libweft.so instead of libweft.a")
    variant("cuda", default=False, description="Build the kernels for NVIDIA's GPUs")
    variant("fortran", default=True, description="Build the Fortran module weft")

    depends_on("c", type="build")
    depends_on("fortran", type="build", when="+fortran")
    depends_on("cmake@3.20:", type="build")
    depends_on("gmake", type="build")
    depends_on("mpi")
    depends_on("onednn@2.6:3")
    depends_on("hdf5")
    depends_on("netcdf-c")
    depends_on("zlib-api")
    depends_on("dlpack", type="build")
    depends_on("stb", type="build")
    depends_on("cuda@12.4:", when="+cuda")
    depends_on("cudnn@9:", when="+cuda")
    depends_on("nccl", when="+cuda")

    def patch(self):
        # Weft includes <stb/stb_image.h>, as Debian has it; Spack's headers are in no folder of that name.
        mkdirp("third")
        os.symlink(self.spec["stb"].prefix.include, join_path("third", "stb"))

    def cmake_args(self):
        return [
            self.define_from_variant("BUILD_SHARED_LIBS", "shared"),
            self.define_from_variant("WEFT_CUDA", "cuda"),
            self.define_from_variant("WEFT_FORTRAN", "fortran"),
            self.define("WEFT_TESTS", False),
            self.define("STB_INCLUDE", join_path(self.stage.source_path, "third")),
        ]

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_install(self):
        Executable(join_path(self.prefix.bin, "wf-doctor"))("--version")
