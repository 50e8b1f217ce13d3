# The contract of the kernel table. Set WEFT_DEVICE to run it against another device than the default.
set(WEFT_CONTRACT core/contract.c core/contract_bodies.c core/contract_bodies_groups.c core/contract_bodies_rows.c)
foreach(test contract_kernels contract_norm contract_group_norm contract_attention contract_elementwise contract_fold contract_memory contract_convolution known_answers
    known_numbers)
  weft_test(${test} LEVEL core)
  target_sources(${test} PRIVATE ${WEFT_CONTRACT})
endforeach()
# The slots of the device itself, also where they have little to do.
weft_test(contract_device LEVEL core)
add_test(NAME contract_device_ref COMMAND contract_device)
weft_test_properties(contract_device_ref 1 100)
set_property(TEST contract_device_ref APPEND PROPERTY ENVIRONMENT WEFT_DEVICE=ref)
