#!/bin/sh
# tests/bench/bars.sh divides by PyTorch's fastest form, leaves out what was not measured, and refuses other input in one line.
set -eu
bars=$(cd "$(dirname "$0")/../bench" && pwd)/bars.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
wrong() {
    echo "bars: $*" >&2
    exit 1
}
head="machine,level,versions,model,precision,batch,who,median,least,most,mib,setup,others"
cat >"$work/good.csv" <<END
$head
A (R) B,avx2,1,vgg16,f32,64,weft,300,,,,,
A (R) B,avx2,1,vgg16,f32,64,eager,100,,,,,
A (R) B,avx2,1,vgg16,f32,64,compile,120,,,,,busy
A (R) B,avx2,1,vgg16,bf16,64,weft,7,,,,,
A (R) B,avx2,1,mlp,bf16,64,weft,9,,,,,
A (R) B,avx2,1,mlp,bf16,64,eager,8,,,,,
A (R) B,avx2,1,mlp,f32,64,weft,30,,,,,
A (R) B,avx2,1,mlp,f32,64,eager,20,,,,,
A (R) B,avx2,1,mlp,f32,64,weft,34,,,,,
A (R) B,avx2,1,mlp,f32,64,eager,10,,,,,
A (R) B,avx2,1,own,f32,64,eager,10,,,,,
A (R) B,avx2,1,own,f32,64,weft,19,,,,,
A (R) B,avx2,1,gpt,f32,64,eager,10,,,,,
A (R) B,avx2,1,gpt,f32,64,weft,21,,,,,
A (R) B,avx2,1,gpt,f32,64,captured,23,,,,,
END
"$bars" "$work/good.csv" "$work/good.svg"
for text in VGG-16 2.50 'MNIST linear' 3.40 own 1.90 GPT 2.30; do
    grep -q ">$text<" "$work/good.svg" || wrong "the picture lacks $text"
done
! grep -q '>1[.]70<\|>1[.]50<\|>3[.]00<' "$work/good.svg" || wrong "the picture has a ratio of an earlier series"

# refused WORDS ARGUMENT...: bars.sh fails with one line, which has these words.
refused() {
    words=$1
    shift
    ! "$bars" "$@" >"$work/out" 2>&1 || wrong "$* was taken"
    grep -q "$words" "$work/out" || wrong "$*: $(cat "$work/out")"
    [ "$(wc -l <"$work/out")" -eq 1 ] || wrong "$*: more than a line: $(cat "$work/out")"
}
refused "1 arguments" "$work/good.csv"
refused "cannot be read" "$work/none.csv" "$work/none.svg"
{ cat "$work/good.csv" && echo "A (R) B,sse41,1,mlp,f32,64,weft,34,,,,,"; } >"$work/two.csv"
refused "several machines or levels" "$work/two.csv" "$work/none.svg"
echo "$head" >"$work/empty.csv"
refused "no row" "$work/empty.csv" "$work/none.svg"
echo "A,avx2,1,vgg16,f32,64,weft,34,,,,," >>"$work/empty.csv"
refused "no model" "$work/empty.csv" "$work/none.svg"
[ ! -e "$work/none.svg" ] || wrong "a refused call left a picture"
