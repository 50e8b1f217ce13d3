foreach(name functions_values functions_semantics gradcheck_functions gradcheck_layers layers_errors layers_values)
  weft_test(${name} LEVEL layers)
endforeach()
weft_test(golden LEVEL all)
weft_test(equiv_sync_norm LEVEL optim RANKS 1 2 3 4 6 8)
weft_test(communication LEVEL optim RANKS 1 2 3 4)
weft_test(sharded_functions LEVEL layers RANKS 1 2 3 4 6 8)
weft_test(redistribute LEVEL layers RANKS 1 2 3 4 6 8)
weft_test(equiv_channel LEVEL layers RANKS 1 2 3 4 6)
# The others have fewer channels than eight.
weft_test_ranks(equiv_channel_eight equiv_channel ${CMAKE_CURRENT_SOURCE_DIR}/layers/equiv_channel.c RANKS 8
  ARGS convolutions groups random linears)
weft_test_whole(equiv_sync_norm RANKS 1 2 3 4 6 8 ARGS random)
weft_test_whole(equiv_channel RANKS 1 2 3 4 6 8 ARGS random)
