weft_test(fit RANKS 1 2 3)
target_link_libraries(fit PRIVATE ${CMAKE_DL_LIBS}) # by failing_threads.h
