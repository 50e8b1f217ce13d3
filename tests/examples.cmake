# The examples, as a user runs them: tests/examples_KIND.sh EXAMPLES MPIEXEC RANKS [...].
if(NOT WEFT_EXAMPLES)
  return()
endif()

function(weft_example_test name kind ranks timeout)
  add_test(NAME example_${name} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/examples_${kind}.sh ${PROJECT_BINARY_DIR}/examples
    ${MPIEXEC_EXECUTABLE} ${ranks} ${ARGN})
  weft_test_properties(example_${name} ${ranks} ${timeout})
endfunction()

add_executable(examples_pictures examples_pictures.c)
target_link_libraries(examples_pictures PRIVATE weft weft_flags)

foreach(ranks 1 2 4)
  weft_example_test(dcgan_${ranks} dcgan ${ranks} 300)
endforeach()
foreach(ranks 2 3)
  weft_example_test(vgg_${ranks} vgg ${ranks} 300)
endforeach()
weft_example_test(segment_4 segment 4 300)
foreach(ranks 1 2)
  weft_example_test(scaling_${ranks} scaling ${ranks} 300)
endforeach()
weft_example_test(allreduce_2 allreduce 2 100)
weft_example_test(names_2 names 2 300)
foreach(ranks 1 3)
  weft_example_test(bad_input_${ranks} bad_input ${ranks} 300)
endforeach()

# One epoch is bounded work; what the README promises takes five.
if(NOT WEFT_SANITIZE)
  weft_example_test(mnist_cnn mnist 2 300 cnn 1 0.80)
  foreach(ranks 1 2 4)
    weft_example_test(mnist_mlp_${ranks} mnist ${ranks} 600 mlp 5 0.87)
  endforeach()
endif()
