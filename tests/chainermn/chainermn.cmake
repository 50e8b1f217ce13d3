# ChainerMN's own tests, by meaning; docs/porting.md has the table.
weft_test(chainermn_communicators LEVEL optim RANKS 1 2 3 4 ENVIRONMENT WEFT_CHUNK_BYTES=2378)
weft_test(chainermn_functions LEVEL layers RANKS 1 2 3 4)
weft_test(chainermn_links LEVEL optim RANKS 1 2 3 4)
weft_test(chainermn_chains LEVEL layers RANKS 1 2 3 4)
weft_test(chainermn_optimizers LEVEL optim RANKS 1 2 3 4)
weft_test(chainermn_data LEVEL datasets RANKS 1 2 3 4)
weft_test(chainermn_extensions LEVEL all RANKS 1 2 3 4)
