foreach(name core_basics core_pool core_tape core_tensor core_window)
  weft_test(${name} LEVEL core)
endforeach()
