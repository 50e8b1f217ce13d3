# The front door: make demo, make planet, make test, make bench, make bench-all, make bench-comm, make amp-table, make pipeline-table, make scaling, make check, make proof, make docs, make dist, make deb. CMake does the work, in build/.
BUILD  ?= build
RANKS  ?= 4
JOBS   ?= $(shell nproc)

# Starts programs on ranks, and sets what this machine asks for.
RUN    = tools/run.sh
WITH   = $(RUN) --env -np $(RANKS)

CONFIGURE = cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release
COMPILE = cmake --build $(BUILD) --parallel $(JOBS)
# Of these tests, each alone or on its numbers of ranks.
MPICH_ONLY = $(if $(MPICH_TESTS),-R '^($(subst $() ,|,$(strip $(MPICH_TESTS))))(_[0-9]+)?$$')
DEMO    = --channels 32 --batch 16 --lr-generator 2e-3 --minutes 2 --out $(BUILD)/demo

.PHONY: demo planet test bench bench-all bench-comm amp-table pipeline-table scaling check proof proof-debian12 proof-debian13 proof-aarch64 proof-mpich proof-mpich12 proof-mpich13 docs dist deb deb12 deb13 build configure setup install clean

demo:
	tools/setup.sh demo
	$(CONFIGURE)
	$(COMPILE) --target dcgan_cifar
	$(RUN) -np $(RANKS) $(BUILD)/examples/dcgan_cifar $(DEMO)

# Winds over the whole Earth, a few minutes; pictures and a table in $(BUILD)/planet/winds. docs/planet.md says what they show.
planet:
	tools/setup.sh planet
	$(CONFIGURE)
	$(COMPILE) --target winds
	mkdir -p $(BUILD)/planet
	$(RUN) -np $(RANKS) $(BUILD)/examples/winds --out $(BUILD)/planet/winds

test: build
	$(WITH) tools/test.sh $(BUILD) -LE 'large|long|proof'

# Ten minutes; bench-all takes an hour.
bench: configure
	$(COMPILE) --target bench_step bench_dcgan
	WEFT_BENCH_FORMS="eager channels_last" $(RUN) --env -np 2 tests/bench/bench_all.sh $(BUILD) dcgan128 unet2

bench-all: configure
	$(COMPILE) --target bench_step bench_dcgan
	$(RUN) --env -np 2 tests/bench/bench_all.sh $(BUILD) $(MODELS)

# Two Swins and a ConvNeXt, f32 and bf16, captured where the device can, beside PyTorch eager and compiled: memory, seconds of
# preparing. Some minutes, most of them PyTorch's compiler.
amp-table: configure
	$(COMPILE) --target bench_step bench_dcgan
	WEFT_BENCH_ROUNDS=1 $(RUN) --env -np 2 tests/bench/bench_all.sh $(BUILD) swin_t swin_b convnext_l

bench-comm: configure
	$(COMPILE) --target bench_dcgan allreduce_bench bench_models bench_overlap bench_gradients bench_saves bench_data autoencoder
	$(RUN) --env -np 2 tests/bench/bench_comm.sh $(BUILD)

# An autoencoder in every form of a pipeline beside the figures of docs/from-the-texts.md, some minutes; STEPS=50 for less.
pipeline-table: configure
	$(COMPILE) --target autoencoder
	$(RUN) --env -np 2 tests/bench/pipeline_table.sh $(BUILD)

scaling: configure
	$(COMPILE) --target halo_scaling
	for ranks in 1 2 4; do $(RUN) -np $$ranks $(BUILD)/examples/halo_scaling --out $(BUILD)/scaling || exit 1; done

check: build
	tools/setup.sh check
	$(WITH) tools/check.sh $(BUILD)

# What was run for one question and is kept to be run again: minutes to hours.
proof: build
	tools/setup.sh check
	tools/setup.sh proof
	$(WITH) tools/test.sh $(BUILD) -L proof
	cmake --preset clang -B $(BUILD)-clang --fresh
	cmake --build $(BUILD)-clang --parallel $(JOBS)
	tools/tidy.sh $(BUILD)-clang
	cmake --preset asan -B $(BUILD)-asan
	cmake --build $(BUILD)-asan --parallel $(JOBS)
	$(WITH) tools/test.sh $(BUILD)-asan -LE 'static|large|long|proof' -E '^hdf5_faults|^full_disk'
	tools/aarch64.sh $(BUILD)-aarch64

# make demo and make test in a bare Debian 12 or 13 (which has oneDNN 3 and OpenMPI 5), without the CUDA toolkit and, where this
# machine has one, with it; Debian is unpacked beside the build. tools/debian.sh says how to do less.
proof-debian12 proof-debian13:
	tools/setup.sh proof
	tools/debian.sh $(@:proof-debian%=%) $(BUILD)-$(@:proof-%=%)

# The contract of the CPU's kernels on aarch64, under qemu.
proof-aarch64:
	tools/setup.sh proof
	tools/aarch64.sh $(BUILD)-aarch64

# The short suite under MPICH, in a build of its own; OpenMPI stays the default of the machine. What is left out starts
# ranks on virtual nodes by OpenMPI's mpirun (tests/comm/cluster.sh), or reads what that mpirun says of an exit code.
# MPICH_TESTS="NAME ..." builds and runs tests of these names alone.
proof-mpich: setup
	tools/setup.sh mpich
	$(CONFIGURE:$(BUILD)=$(BUILD)-mpich) -DWEFT_CUDA=OFF -DMPI_C_COMPILER=mpicc.mpich -DMPIEXEC_EXECUTABLE="$$(command -v mpiexec.mpich)"
	cmake --build $(BUILD)-mpich --parallel $(JOBS) $(MPICH_TESTS:%=--target %)
	$(WITH) tools/test.sh $(BUILD)-mpich -LE 'large|long|proof|static' -E '^(cluster_|comm_watchdog_stuck|example_unsaved_2)' --no-tests=error $(MPICH_ONLY)

# The same in a bare Debian 12 (MPICH 4.0) or 13 (MPICH 4.2), of its own: proof-debian12 and proof-debian13 see no MPICH.
proof-mpich12 proof-mpich13:
	tools/setup.sh proof
	DEBIAN_MPI=mpich tools/debian.sh $(@:proof-mpich%=%) $(BUILD)-mpich-debian$(@:proof-mpich%=%)

# The reference of the headers and the pages of docs/; a warning is an error.
docs:
	tools/setup.sh docs
	mkdir -p $(BUILD)/docs
	WEFT_DOCS=$(BUILD)/docs doxygen Doxyfile
	@echo "open $(BUILD)/docs/html/index.html"

# The source archive of the last commit; it builds and tests without git.
dist:
	tools/dist.sh $(BUILD)

# The packages of the last commit for Debian 12 and 13, built in one bare Debian, installed, tried and removed in another. Only
# root may. They lie in $(BUILD)-deb12/packages and $(BUILD)-deb13/packages.
deb: deb12 deb13

deb12 deb13:
	tools/deb.sh $(@:deb%=%) $(BUILD)-$@

build: configure
	$(COMPILE)

configure: setup
	$(CONFIGURE)

setup:
	tools/setup.sh

install: build
	cmake --install $(BUILD)

clean:
	rm -rf $(BUILD) $(BUILD)-clang $(BUILD)-asan $(BUILD)-onednn3 $(BUILD)-mpich
