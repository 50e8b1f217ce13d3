# The front door: make demo, make test, make bench, make check. CMake does the work, in build/.
BUILD  ?= build
RANKS  ?= 4
JOBS   ?= $(shell nproc)
CCACHE := $(shell command -v ccache)

# What makes plain `mpirun -np 4` work as root, with more ranks than cores, and without ties to single cores.
export OMPI_ALLOW_RUN_AS_ROOT = 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM = 1
export OMPI_MCA_rmaps_base_oversubscribe = 1
export OMPI_MCA_hwloc_base_binding_policy = none
export OMPI_MCA_mpi_yield_when_idle = 1

DEMO = --channels 64 --batch 16 --iterations 4000 --out $(BUILD)/demo

.PHONY: demo test bench check build setup install clean

demo: build
	mpirun -np $(RANKS) $(BUILD)/examples/dcgan_cifar $(DEMO)

test: build
	ctest --test-dir $(BUILD) --output-on-failure --parallel $(JOBS)

bench: build
	tests/bench/bench.sh $(BUILD)

check: build
	tools/setup.sh check
	tools/check.sh $(BUILD)

build: setup
	cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release $(if $(CCACHE),-DCMAKE_C_COMPILER_LAUNCHER=$(CCACHE))
	cmake --build $(BUILD) --parallel $(JOBS)

setup:
	tools/setup.sh

install: build
	cmake --install $(BUILD)

clean:
	rm -rf $(BUILD) $(BUILD)-clang $(BUILD)-asan
