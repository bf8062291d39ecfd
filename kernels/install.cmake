# The kernels for programs that know nothing of the daemon: one static library with what it needs of base, its headers, and
# pkg-config's expertd-kernels, which finds them wherever the prefix is moved.
include(GNUInstallDirs)

add_library(expertd_kernels STATIC $<TARGET_OBJECTS:kernels> ../base/err.c ../base/dtype.c ../base/tensor.c)

set(headers backend from_tensors group_metadata grouped_gemm grouped_matmul kernels operand options quantised schedule team
    transposed_grouped_matmul weights)
list(TRANSFORM headers APPEND .h)
install(FILES ${headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/expertd/kernels)
install(FILES ../base/dtype.h ../base/err.h ../base/tensor.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/expertd/base)
install(TARGETS expertd_kernels ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES examples/grouped_matmul.c DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)

file(RELATIVE_PATH to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(expertd-kernels.pc.in expertd-kernels.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/expertd-kernels.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
