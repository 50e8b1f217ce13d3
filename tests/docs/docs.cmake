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
foreach(rung loop net prepare fit)
  weft_tutorial(ladder_${rung} tutorial-ladder.md)
endforeach()
add_test(NAME ladder COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/docs/ladder.sh ${MPIEXEC_EXECUTABLE} ${CMAKE_CURRENT_BINARY_DIR})
weft_test_properties(ladder 2 100)
# weft_page_program(NAME PAGE BODY): docs/NAME.c, which includes the lines of docs/PAGE that are those of BODY.
function(weft_page_program name page body)
  set(file ${CMAKE_CURRENT_BINARY_DIR}/${body})
  set(awk ${CMAKE_CURRENT_SOURCE_DIR}/docs/tutorial_code.awk)
  add_custom_command(OUTPUT ${file} DEPENDS ${PROJECT_SOURCE_DIR}/docs/${page} ${awk} VERBATIM
    COMMAND sh -c "awk -v file=${body} -f ${awk} ${PROJECT_SOURCE_DIR}/docs/${page} >${file}")
  add_executable(${name} docs/${name}.c ${file})
  set_source_files_properties(${file} PROPERTIES HEADER_FILE_ONLY ON) # docs/NAME.c includes it
  target_include_directories(${name} PRIVATE ${PROJECT_BINARY_DIR})
  target_link_libraries(${name} PRIVATE weft weft_flags)
endfunction()

# The objective of docs/running.md, in a program that lets its trials fail.
weft_page_program(study_page running.md study_objective.c)
add_test(NAME study_page COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/docs/study_page.sh ${MPIEXEC_EXECUTABLE} $<TARGET_FILE:study_page>)
weft_test_properties(study_page 2 100)
set_tests_properties(study_page PROPERTIES SKIP_RETURN_CODE 77 LABELS long)

# The lines of docs/planning.md, in a program that is compiled only: tests of examples run the same calls.
weft_page_program(planned_page planning.md planned_page_body.c)

weft_static(docs ${CMAKE_CURRENT_SOURCE_DIR}/docs/pages.sh)
