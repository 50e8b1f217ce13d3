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
# The objective of docs/running.md, in a program that lets its trials fail.
set(study_objective ${CMAKE_CURRENT_BINARY_DIR}/study_objective.c)
set(study_awk ${CMAKE_CURRENT_SOURCE_DIR}/docs/tutorial_code.awk)
add_custom_command(OUTPUT ${study_objective} DEPENDS ${PROJECT_SOURCE_DIR}/docs/running.md ${study_awk} VERBATIM
  COMMAND sh -c "awk -v file=study_objective.c -f ${study_awk} ${PROJECT_SOURCE_DIR}/docs/running.md >${study_objective}")
add_executable(study_page docs/study_page.c ${study_objective})
set_source_files_properties(${study_objective} PROPERTIES HEADER_FILE_ONLY ON) # study_page.c includes it
target_include_directories(study_page PRIVATE ${PROJECT_BINARY_DIR})
target_link_libraries(study_page PRIVATE weft weft_flags)
add_test(NAME study_page COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/docs/study_page.sh ${MPIEXEC_EXECUTABLE} $<TARGET_FILE:study_page>)
weft_test_properties(study_page 2 100)
set_tests_properties(study_page PROPERTIES SKIP_RETURN_CODE 77 LABELS long)

# The lines of docs/planning.md, in a program that is compiled only: tests of examples run the same calls.
set(planned_body ${CMAKE_CURRENT_BINARY_DIR}/planned_page_body.c)
add_custom_command(OUTPUT ${planned_body} DEPENDS ${PROJECT_SOURCE_DIR}/docs/planning.md ${study_awk} VERBATIM
  COMMAND sh -c "awk -v file=planned_page_body.c -f ${study_awk} ${PROJECT_SOURCE_DIR}/docs/planning.md >${planned_body}")
add_executable(planned_page docs/planned_page.c ${planned_body})
set_source_files_properties(${planned_body} PROPERTIES HEADER_FILE_ONLY ON) # planned_page.c includes it
target_include_directories(planned_page PRIVATE ${PROJECT_BINARY_DIR})
target_link_libraries(planned_page PRIVATE weft weft_flags)

weft_static(docs ${CMAKE_CURRENT_SOURCE_DIR}/docs/pages.sh)
