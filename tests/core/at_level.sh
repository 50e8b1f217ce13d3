#!/bin/sh
# A program at a level of the processor: tests/core/at_level.sh CORE_PROCESSOR ISA LEVEL PROGRAM [ARGUMENT...], ISA being that
# of oneDNN (ONEDNN_MAX_CPU_ISA) and LEVEL that of the library's own kernels (WEFT_LEVEL). A processor that lacks the level
# skips it and says so.
set -eu
names=$1
export ONEDNN_MAX_CPU_ISA="$2" WEFT_LEVEL="$3"
shift 3
said=$(WEFT_DEVICE=cpu "$names" 2>/dev/null)
case $said in
"level $WEFT_LEVEL, device cpu
oneDNN "*", $ONEDNN_MAX_CPU_ISA") exec "$@" ;;
esac
echo "SKIP: $ONEDNN_MAX_CPU_ISA and $WEFT_LEVEL were asked for, this processor has:" $said
exit 77
