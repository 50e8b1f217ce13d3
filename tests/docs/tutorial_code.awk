# Prints the C code of one program out of a tutorial: the fenced blocks that follow a line <!-- code: FILE -->.
#     awk -v file=tutorial_layer.c -f tutorial_code.awk docs/tutorial-layer.md
$0 == "<!-- code: " file " -->" { wanted = 1; next }
wanted && /^```c$/ { printf "#line %d \"%s\"\n", FNR + 1, FILENAME; inside = 1; wanted = 0; next }
inside && /^```$/ { inside = 0; next }
inside { print; lines++ }
END { if (!lines) { print "no code for " file > "/dev/stderr"; exit 1 } }
