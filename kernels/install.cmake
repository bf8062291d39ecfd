# The kernels for programs that know nothing of the daemon: one static library with base in it (a program links what it needs), the
# public headers, and pkg-config's expertd-kernels, which finds them wherever the prefix is moved.
include(GNUInstallDirs)

add_library(expertd_kernels STATIC $<TARGET_OBJECTS:kernels> $<TARGET_OBJECTS:base>)

# A header that does not call itself private to kernels/ is public.
file(GLOB headers CONFIGURE_DEPENDS *.h)
foreach(header ${headers})
  file(STRINGS ${header} private REGEX "[Pp]rivate to kernels/")
  if(private)
    list(REMOVE_ITEM headers ${header})
  endif()
endforeach()
install(FILES ${headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/expertd/kernels)
install(FILES ../base/arena.h ../base/dtype.h ../base/err.h ../base/tensor.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/expertd/base)
install(TARGETS expertd_kernels ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES examples/grouped_matmul.c DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)

file(RELATIVE_PATH to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(expertd-kernels.pc.in expertd-kernels.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/expertd-kernels.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
