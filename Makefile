# The front door: make demo, make test, make bench, make scaling, make check, make proof, make docs. CMake does the work, in build/.
BUILD  ?= build
RANKS  ?= 4
JOBS   ?= $(shell nproc)
CCACHE := $(shell command -v ccache)

# What makes plain `mpirun -np 4` work as root, with more ranks than cores, without ties to single cores, in a container.
export OMPI_ALLOW_RUN_AS_ROOT = 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM = 1
export OMPI_MCA_rmaps_base_oversubscribe = 1
export OMPI_MCA_mpi_yield_when_idle = 1
export OMPI_MCA_hwloc_base_binding_policy = none
export OMPI_MCA_btl_vader_single_copy_mechanism = none

COMPILE = cmake --build $(BUILD) --parallel $(JOBS)
DEMO    = --channels 64 --batch 16 --iterations 4000 --out $(BUILD)/demo

.PHONY: demo test bench scaling check proof docs build configure setup install clean

demo: configure
	$(COMPILE) --target dcgan_cifar
	mpirun -np $(RANKS) $(BUILD)/examples/dcgan_cifar $(DEMO)

test: build
	tools/test.sh $(BUILD) -LE 'large|long|proof'

bench: configure
	$(COMPILE) --target bench_dcgan allreduce_bench bench_models bench_overlap bench_gradients bench_saves bench_data
	tests/bench/bench.sh $(BUILD)

scaling: configure
	$(COMPILE) --target halo_scaling
	for ranks in 1 2 4; do \
	OMPI_MCA_mpi_yield_when_idle=$$([ $$ranks -le $(JOBS) ] && echo 0 || echo 1) mpirun -np $$ranks $(BUILD)/examples/halo_scaling --out $(BUILD)/scaling || exit 1; done

check: build
	tools/setup.sh check
	tools/check.sh $(BUILD)

# What was run for one question and is kept to be run again: minutes to hours.
proof: build
	tools/setup.sh proof
	tools/test.sh $(BUILD) -L proof

# The reference of the headers and the pages of docs/; a warning is an error.
docs:
	tools/setup.sh docs
	mkdir -p $(BUILD)/docs
	WEFT_DOCS=$(BUILD)/docs doxygen Doxyfile
	@echo "open $(BUILD)/docs/html/index.html"

build: configure
	$(COMPILE)

configure: setup
	cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release $(if $(CCACHE),-DCMAKE_C_COMPILER_LAUNCHER=$(CCACHE))

setup:
	tools/setup.sh

install: build
	cmake --install $(BUILD)

clean:
	rm -rf $(BUILD) $(BUILD)-clang $(BUILD)-asan $(BUILD)-onednn3
