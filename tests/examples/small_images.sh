# small_images FOLDER TRAIN TEST: the first images of Fashion-MNIST in plain IDX files, for programs whose test need not
# read all 70000. Sourced.

# number N: in four bytes, the highest first
number() {
    printf "\\000\\000\\$(printf %03o $(($1 / 256)))\\$(printf %03o $(($1 % 256)))"
}

# first COUNT NAME HEAD BYTES: HEAD bytes, whose second four are the count, and BYTES for each
first() {
    {
        gzip -dc "/usr/share/datasets/fashion-mnist/$2.gz" | head -c 4
        number "$1"
        gzip -dc "/usr/share/datasets/fashion-mnist/$2.gz" | head -c $(($3 + $1 * $4)) | tail -c +9
    } 2>/dev/null
}

small_images() {
    mkdir -p "$1"
    first "$2" train-images-idx3-ubyte 16 784 >"$1/train-images-idx3-ubyte"
    first "$2" train-labels-idx1-ubyte 8 1 >"$1/train-labels-idx1-ubyte"
    first "$3" t10k-images-idx3-ubyte 16 784 >"$1/t10k-images-idx3-ubyte"
    first "$3" t10k-labels-idx1-ubyte 8 1 >"$1/t10k-labels-idx1-ubyte"
}
