#!/bin/sh
# Numbers, options and programs that the tools refuse, each with one line that names the option and the value:
# tests/comm/tool_numbers.sh WF-DOCTOR WF-PLAN WF-DATA
set -u
doctor=$1 plan=$2 data=$3
failed=0

# refused TEXT COMMAND...: ends soon, with a code that is not 0, and one line, which contains the text.
refused() {
    text=$1
    shift
    said=$(timeout 30 "$@" 2>&1 </dev/null)
    code=$?
    lines=$(printf '%s\n' "$said" | wc -l)
    case $code:$lines:$said in
        0:* | 124:* | *:[02-9]:*) ;;
        *:1:*"$text"*) return ;;
    esac
    echo "$*: code $code, $lines lines, not one with \"$text\":"
    printf '%s\n' "$said" | head -3
    failed=1
}

# What is a number tests/comm/numbers.c tries; these are the options.
for value in -1 1e3 1XiB 99999999999999999999; do
    refused "--bytes $value: should be" "$doctor" --schedule bcast --bytes "$value"
done
refused '--bytes 6: should be a multiple of 4' "$doctor" --schedule bcast --bytes 6
refused '--rank 2x: should be a rank from 0 to 3' "$doctor" --schedule bcast --rank 2x
refused '--root 4: should be a rank from 0 to 3' "$doctor" --schedule bcast --root 4
refused '--nodes 4,: should be' "$doctor" --schedule bcast --nodes 4,
refused '--ranks +2: should be' "$plan" --ranks +2 vgg16
refused '--nodes 1,1,: should be' "$plan" --ranks 2 --nodes 1,1, vgg16
refused '--memory 1e20: should be' "$plan" --ranks 2 --memory 1e20 vgg16
refused '--memory 99999999999999999999: should be' "$plan" --ranks 2 --memory 99999999999999999999 vgg16
refused '--link 1e400Gbit: should be' "$plan" --ranks 2 --link 1e400Gbit vgg16
refused '--chunk  8: should be a whole number from 1 to 2147483648' "$data" mnist x -o y --chunk ' 8'
refused '--crop +5x5: should be HxW, each from 1 to 1048575' "$data" mnist x -o y --crop +5x5
refused '--channels 5: should be a whole number from 1 to 4' "$data" mnist x -o y --channels 5
refused '--only 4:1: should be A:B' "$data" mnist x -o y --only 4:1
refused '--chunk has no value' "$data" mnist x -o y --chunk
refused 'there is no option --sise' "$data" mnist x -o y --sise 4
# Options that are not there, and programs.
refused 'there is no option --rank; see wf-plan --help' "$plan" --rank 2
refused '--ranks has no value' "$plan" --ranks
refused 'there is no --ranks R' "$plan" --nodes 2 vgg16
refused 'there is no program and no model' "$plan" --ranks 2 --
refused 'no_such_program: neither a program nor a model; models are vgg16' "$plan" --ranks 2 -- no_such_program
refused '/no/such/program: neither a program nor a model' "$plan" --ranks 1 -- /no/such/program
refused 'there is no option --trac; see wf-doctor --help' "$doctor" --trac folder
refused '--trace with 0 arguments' "$doctor" --trace
exit $failed
