# The cpu filling's own forms, on shapes that the contract does not reach.
weft_test(cpu_convolution LEVEL core)
