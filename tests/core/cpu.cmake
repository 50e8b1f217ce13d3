# The cpu filling's own forms, on shapes that the contract does not reach.
weft_test(cpu_convolution LEVEL core)
# Without minimal filtering.
add_test(NAME cpu_convolution_onednn COMMAND cpu_convolution geometries kept_filters minimal)
weft_test_properties(cpu_convolution_onednn 1 100)
set_property(TEST cpu_convolution_onednn APPEND PROPERTY ENVIRONMENT WEFT_MINIMAL=0)
weft_test(cpu_bf16 LEVEL core)
# Without instructions for bf16: right, and slower, which it says.
add_test(NAME cpu_bf16_masked COMMAND cpu_bf16)
weft_test_properties(cpu_bf16_masked 1 100)
set_tests_properties(cpu_bf16_masked PROPERTIES PASS_REGULAR_EXPRESSION "bf16 [^\n]* slower[^\n]*\nok   compute"
  FAIL_REGULAR_EXPRESSION "FAIL")
set_property(TEST cpu_bf16_masked APPEND PROPERTY ENVIRONMENT ONEDNN_MAX_CPU_ISA=AVX512_CORE WEFT_LOG=info)
