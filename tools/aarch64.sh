#!/bin/sh
# Compiles the kernels of the CPU for aarch64 and runs their contract under qemu: tools/aarch64.sh FOLDER. `make
# proof-aarch64` calls it; only root may. Debian's packages of arm64 are unpacked in the folder, not installed: nothing of
# them runs but what the tests link.
set -eu
cd "$(dirname "$0")/.."
mkdir -p "$1"
folder=$(cd "$1" && pwd)
root=$folder/debian
if [ ! -e "$root/usr/include/oneapi" ]; then
    debootstrap --foreign --arch=arm64 --variant=minbase \
        --include=libdnnl-dev,libopenmpi-dev,libhdf5-dev,zlib1g-dev,libstb-dev,libc6-dev bookworm "$root"
    for package in "$root"/var/cache/apt/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
fi
libraries=$root/usr/lib/aarch64-linux-gnu
cmake -S . -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DWEFT_CUDA=OFF -DWEFT_EXAMPLES=OFF \
    -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc \
    -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_SYSROOT="$root" -DCMAKE_FIND_ROOT_PATH_MODE_PROGRAM=NEVER \
    -DCMAKE_CROSSCOMPILING_EMULATOR="qemu-aarch64;-L;$root" \
    -DMPI_C_LIB_NAMES=mpi -DMPI_mpi_LIBRARY="$libraries/openmpi/lib/libmpi.so" \
    -DMPI_C_HEADER_DIR="$libraries/openmpi/include" -DMPIEXEC_EXECUTABLE="$(command -v mpirun)" >/dev/null
tests="contract_kernels contract_norm contract_elementwise contract_convolution known_numbers gradcheck_layers"
cmake --build "$folder/build" --target $tests
for test in $tests; do
    echo "== $test"
    OMP_NUM_THREADS=1 qemu-aarch64 -L "$root" "$folder/build/tests/$test"
done
echo "aarch64: $(echo $tests | wc -w) programs passed"
