# The kernels for programs that know nothing of the daemon: one static library with base in it (a program links what it needs), the
# public headers, and pkg-config's expertd-kernels, which finds them wherever the prefix is moved.
include(GNUInstallDirs)

# One object, whose names are local but for those of exported-symbols: a program that has an arena_init or an exp_f32 of its own must
# neither clash with ours nor lend us its own. tests/kernels_install holds the list against the public headers.
set(whole ${CMAKE_CURRENT_BINARY_DIR}/expertd_kernels.o)
set(exported ${CMAKE_CURRENT_SOURCE_DIR}/exported-symbols)
add_custom_command(
  OUTPUT ${whole}
  COMMAND ${CMAKE_LINKER} -r -o ${whole}.all $<TARGET_OBJECTS:kernels> $<TARGET_OBJECTS:base>
  COMMAND ${CMAKE_OBJCOPY} --keep-global-symbols=${exported} ${whole}.all ${whole}
  COMMAND ${CMAKE_COMMAND} -E rm ${whole}.all
  DEPENDS kernels base $<TARGET_OBJECTS:kernels> $<TARGET_OBJECTS:base> ${exported}
  COMMENT "The kernels in one object"
  COMMAND_EXPAND_LISTS VERBATIM)
add_library(expertd_kernels STATIC ${whole})
set_target_properties(expertd_kernels PROPERTIES LINKER_LANGUAGE C)

# A header that does not call itself private to kernels/ is public, but for what other folders of this tree alone use.
file(GLOB headers CONFIGURE_DEPENDS *.h)
list(FILTER headers EXCLUDE REGEX "/(convert|finish|scalar_math|device_codes|device_plan)\\.h$")
foreach(header ${headers})
  file(STRINGS ${header} private REGEX "[Pp]rivate to kernels/")
  if(private)
    list(REMOVE_ITEM headers ${header})
  endif()
endforeach()
install(FILES ${headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/expertd/kernels)
install(FILES ../base/dtype.h ../base/err.h ../base/tensor.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/expertd/base)
install(TARGETS expertd_kernels ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES examples/grouped_matmul.c DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)

file(RELATIVE_PATH to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(expertd-kernels.pc.in expertd-kernels.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/expertd-kernels.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
