# PyTorch's own samples, where it is there: `make proof`.
weft_test_source(source torch_samples)
add_executable(torch_samples ${source})
target_link_libraries(torch_samples PRIVATE weft_test_main weft weft_flags m)
add_test(NAME torch_samples COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/outside/torch_samples.sh $<TARGET_FILE:torch_samples>)
weft_test_properties(torch_samples 1 600)
set_tests_properties(torch_samples PROPERTIES LABELS proof SKIP_RETURN_CODE 77)

# Recurrent layers beside PyTorch's.
weft_test_source(source torch_recurrent)
add_executable(torch_recurrent ${source})
target_link_libraries(torch_recurrent PRIVATE weft_test_main weft weft_flags m)
add_test(NAME torch_recurrent COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/outside/torch_recurrent.sh $<TARGET_FILE:torch_recurrent>)
weft_test_properties(torch_recurrent 1 300)
set_tests_properties(torch_recurrent PROPERTIES LABELS proof SKIP_RETURN_CODE 77)

# The losses of BasicNet beside PyTorch's.
add_executable(torch_basicnet outside/torch_basicnet.c ${PROJECT_SOURCE_DIR}/examples/models/mnist.c)
target_link_libraries(torch_basicnet PRIVATE weft weft_flags)
add_test(NAME torch_basicnet COMMAND sh -c "exec \"\${WEFT_TORCH_PYTHON:-python3}\" \"$0\" \"$1\""
  ${CMAKE_CURRENT_SOURCE_DIR}/outside/torch_basicnet.py $<TARGET_FILE:torch_basicnet>)
weft_test_properties(torch_basicnet 1 300)
set_tests_properties(torch_basicnet PROPERTIES LABELS proof SKIP_RETURN_CODE 77)

# Models of torchvision and timm, where they are there: `make proof`.
if(TARGET named_models)
  add_test(NAME torch_named COMMAND sh -c "exec \"\${WEFT_TORCH_PYTHON:-python3}\" \"$0\" \"$1\" \"$2\""
    ${CMAKE_CURRENT_SOURCE_DIR}/outside/torch_named.py $<TARGET_FILE:named_models> ${PROJECT_SOURCE_DIR}/tools/from_pytorch.py)
  weft_test_properties(torch_named 1 900)
  set_tests_properties(torch_named PROPERTIES LABELS proof SKIP_RETURN_CODE 77)
endif()

# Chainer itself, where it is there: `make proof`. $WEFT_CHAINER_PYTHON, else python3.
weft_test_source(source chainer_files)
add_executable(chainer_files ${source})
target_link_libraries(chainer_files PRIVATE weft weft_flags m)
add_test(NAME chainer_files COMMAND sh -c "exec \"\${WEFT_CHAINER_PYTHON:-python3}\" \"$0\" \"$1\""
  ${CMAKE_CURRENT_SOURCE_DIR}/outside/chainer_files.py $<TARGET_FILE:chainer_files>)
weft_test_properties(chainer_files 1 300)
set_tests_properties(chainer_files PROPERTIES LABELS proof SKIP_RETURN_CODE 77)
