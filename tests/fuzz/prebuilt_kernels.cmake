# Imports the kernels of another build, EXPERTD_KERNELS_BUILD, for the fuzzers.
add_library(kernels STATIC IMPORTED GLOBAL)
set_target_properties(kernels PROPERTIES IMPORTED_LOCATION ${EXPERTD_KERNELS_BUILD}/kernels/libkernels.a)
target_link_libraries(kernels INTERFACE base ${CMAKE_DL_LIBS})
add_subdirectory(kernels/cuda)
