weft_test(model_files LEVEL layers RANKS 1 2 3 4)
add_test(NAME h5py COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/file/h5py.sh ${MPIEXEC_EXECUTABLE} $<TARGET_FILE:model_files>)
weft_test_properties(h5py 2 100)
set_tests_properties(h5py PROPERTIES SKIP_RETURN_CODE 77)
