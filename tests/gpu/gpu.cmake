# The script for machines with a GPU, as far as it can be tried on one without.
add_test(NAME gpu_script COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/gpu/check.sh ${PROJECT_BINARY_DIR})
weft_test_properties(gpu_script 1 100)
