weft_test(fit RANKS 1 2 3)
