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
add_test(NAME equiv_channel_8 COMMAND ${MPIEXEC_EXECUTABLE} -np 8 $<TARGET_FILE:equiv_channel> convolutions groups random
  linears)
weft_test_properties(equiv_channel_8 8 300)
