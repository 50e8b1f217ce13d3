# The programs of the tutorials, compiled out of their pages, and the pages' links.
function(weft_tutorial name page)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${name}.c)
  set(awk ${CMAKE_CURRENT_SOURCE_DIR}/docs/tutorial_code.awk)
  add_custom_command(OUTPUT ${source} DEPENDS ${PROJECT_SOURCE_DIR}/docs/${page} ${awk} VERBATIM
    COMMAND sh -c "awk -v file=${name}.c -f ${awk} ${PROJECT_SOURCE_DIR}/docs/${page} >${source}")
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE weft weft_flags m)
endfunction()

weft_tutorial(tutorial_data_parallel tutorial-data-parallel.md)
weft_tutorial(tutorial_layer tutorial-layer.md)

foreach(ranks 1 2)
  add_test(NAME tutorial_data_parallel_${ranks} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/docs/tutorial_data_parallel.sh
    ${MPIEXEC_EXECUTABLE} ${ranks} $<TARGET_FILE:tutorial_data_parallel>)
  weft_test_properties(tutorial_data_parallel_${ranks} ${ranks} 120)
  set_property(TEST tutorial_data_parallel_${ranks} PROPERTY LABELS long)
endforeach()
foreach(ranks 1 2 3)
  add_test(NAME tutorial_layer_${ranks} COMMAND ${MPIEXEC_EXECUTABLE} -np ${ranks} $<TARGET_FILE:tutorial_layer>)
  weft_test_properties(tutorial_layer_${ranks} ${ranks} 60)
  set_property(TEST tutorial_layer_${ranks} PROPERTY LABELS long)
endforeach()
weft_static(docs ${CMAKE_CURRENT_SOURCE_DIR}/docs/pages.sh)
