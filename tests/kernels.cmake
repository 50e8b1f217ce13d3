# The contract of the kernel table. Set WEFT_DEVICE to run it against another device than the default.
foreach(test contract_kernels contract_norm contract_elementwise contract_memory known_answers known_numbers)
  weft_test(${test} LEVEL core)
  target_sources(${test} PRIVATE contract.c)
endforeach()
